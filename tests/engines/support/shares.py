# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of hooks print."""
import json
import statistics


def tell(runs, as_json, **more):
    """runs: of each repetition the median seconds of a step, those in hooks, calls of hooks, and how many steps. Prints their medians."""
    share = [100 * hooks / step for step, hooks, _calls, _steps in runs]
    told = {
        **more, "steps": sum(run[3] for run in runs), "step_us": statistics.median(1e6 * run[0] for run in runs),
        "hooks_us": statistics.median(1e6 * run[1] for run in runs), "hook_calls": statistics.median(run[2] for run in runs),
        "share_percent": statistics.median(share), "share_percent_each": share}
    print(json.dumps(told) if as_json else
          f"{told['hooks_us']:.0f} us in {told['hook_calls']:.0f} hook calls of a step of {told['step_us']:.0f} us: "
          f"{told['share_percent']:.1f} % (each: {', '.join(f'{one:.1f}' for one in share)})")
