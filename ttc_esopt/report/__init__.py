"""`report`: one self-contained HTML page about one run, several runs or a study; figures; TensorBoard.

from ttc_esopt.report import write_report
write_report(["demo", "demo-frozen"], "both.html")

The page has no scripts and asks the network for nothing. All text of a run (replies, descriptions, code, messages) is
model-written and therefore hostile: the template escapes everything but our own SVG and the highlighter's output. A run
that was killed early, with files missing or torn, gives a page with what there is.
"""

from ttc_esopt.report.figures import write_figures
from ttc_esopt.report.page import write_report
from ttc_esopt.report.study import write_study_report

__all__ = ["write_figures", "write_report", "write_study_report"]
