"""The command of REFERENCE.md that reads two checkpoints alone and in both handoffs."""

import re
import shlex
from pathlib import Path

import recipes.tandem
from recipes.evaluation.partner_readings import variants
from recipes.evaluation.settings import read_settings

REFERENCE = Path(recipes.tandem.__file__).parent / "REFERENCE.md"


def test_one_command_reads_two_checkpoints_alone_and_in_both_handoffs():
    section = REFERENCE.read_text(encoding="utf-8").split("## Two checkpoints, both handoffs, one command")[1]
    command = re.search(r"```bash\n(.+?)```", section, re.DOTALL)[1].replace("\\\n", " ")
    assert command.startswith("python -m recipes.evaluation.main ")
    settings = read_settings(shlex.split(command)[3:])
    assert [spec.path for spec in settings.models] == ["outputs/tandem", "outputs/grpo"]
    for spec in settings.models:
        found = {name.removeprefix(f"{spec.name}+"): each for name, each in variants(spec, settings)}
        assert found.keys() == {spec.name, "sentence_handoff", "word_handoff"}
        macro = {"tandem": [["amc23_25"], ["aime24", "aime25", "aime26"], ["minerva_math"], ["olympiad_581"]]}
        for each in found.values():
            assert list(each.metrics.k) == [1, 4] and each.sampling["n"] >= 4
            assert {name: [list(pool) for pool in parts] for name, parts in each.macro.items()} == macro
