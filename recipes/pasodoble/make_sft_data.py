"""The former name of `recipes.pasodoble.cold_start.make_sft_data`; it forwards, with a notice, for one release."""

import runpy
import sys

if __name__ == "__main__":
    new = "recipes.pasodoble.cold_start.make_sft_data"
    print(f"python -m recipes.pasodoble.make_sft_data is now python -m {new}", file=sys.stderr)
    runpy.run_module(new, run_name="__main__")
