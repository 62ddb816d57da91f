"""Draws the whole picture: the racks, the steps of the run, the ComputeDomains, the counts and the legend."""

from imex_dra.picture.model import ClusterModel, Domain, RunProgress, Step, StepState
from imex_dra.picture.rackdrawing import draw_racks
from imex_dra.picture.text import Line, Lines, justified, line, max_width, side_by_side, truncated

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PANEL_MIN, _PANEL_MAX, _GAP = 33, 48, 3
_MARKS = {StepState.PENDING: ("·", "dim"), StepState.DONE: ("✓", "good"), StepState.FAILED: ("✗", "bad")}

_NODE = line(("●", "fine"), ("○", "bad"), (" node Ready, or not", "dim"))
_IMEX = line(("◆", "fine"), ("◇", "warn"), (" IMEX READY, or not", "dim"))
_BROKEN = line(("✕", "bad"), (" fabric broken", "dim"))
_PREPARED = line(("▇", "A"), (" channel in a container", "dim"))
_ALLOCATED = line(("░", "A?"), (" claim allocated, not prepared", "dim"))
_LEGEND = (_NODE, _IMEX, _BROKEN, _PREPARED, _ALLOCATED)
_SHORT_LEGEND = ((*_NODE, ("   ", ""), *_IMEX, ("   ", ""), *_BROKEN), (*_PREPARED, ("   ", ""), *_ALLOCATED))


def draw(model: ClusterModel, progress: RunProgress, *, width: int, height: int, tick: int = 0) -> Lines:
    """Never wider or higher than the given size. `tick` turns the spinner."""
    if model.racks:
        lines = _with_panel(model, progress, width, height, tick) or _stacked(model, progress, width, height, tick)
    else:
        lines = (
            _title(progress, width),
            line(),
            *_panel(model, progress, min(width, _PANEL_MAX), height, tick),
        )
    return tuple(truncated(one, width) for one in lines[:height])


def _with_panel(model: ClusterModel, progress: RunProgress, width: int, height: int, tick: int) -> Lines:
    """The panel beside the racks; empty if racks with a line per node leave no space for it."""
    head = (_title(progress, width), line())
    racks = draw_racks(model.racks, width - _PANEL_MIN - _GAP, height - len(head))
    columns = min(width - max_width(racks) - _GAP, _PANEL_MAX)
    panel = _panel(model, progress, columns, height - len(head), tick)
    # As many lines as racks means that draw_racks fell back to one line per rack.
    fits = len(racks) > len(model.racks) and len(panel) + len(head) <= height
    return (*head, *side_by_side(racks, panel, _GAP)) if fits else ()


def _panel(model: ClusterModel, progress: RunProgress, columns: int, height: int, tick: int) -> Lines:
    """The legend is the first part to be left out."""
    steps = tuple(one for step in progress.steps for one in _step_lines(step, columns, tick))
    domains = tuple(one for domain in model.domains for one in _domain_lines(domain, columns))
    content = _sections(steps, domains, _count_lines(model) if model.racks else ())
    with_legend = _sections(content, _LEGEND if model.racks else ())
    return tuple(truncated(one, columns) for one in (with_legend if len(with_legend) <= height else content))


def _sections(*sections: Lines) -> Lines:
    """The sections that are not empty, separated by empty lines."""
    return tuple(one for section in filter(None, sections) for one in (line(), *section))[1:]


def _stacked(model: ClusterModel, progress: RunProgress, width: int, height: int, tick: int) -> Lines:
    """The current step above the racks, everything else below them."""
    head = (_title(progress, width), *_current_step(progress, width, tick))
    foot = (*map(_domain_line, model.domains), _count_line(model))
    racks = draw_racks(model.racks, width, height - len(head) - len(foot))
    return (*head, *racks, *foot, *(entry for entry in _SHORT_LEGEND if max_width([entry]) <= width))


def _title(progress: RunProgress, width: int) -> Line:
    elapsed = "" if progress.seconds is None else _minutes(progress.seconds)
    return justified(line((progress.title, "title")), line((elapsed, "count")), width)


def _current_step(progress: RunProgress, width: int, tick: int) -> Lines:
    step = progress.current
    if step is None:
        return ()
    detail = ", ".join(filter(None, (step.detail, _seconds(step))))
    return (justified(_step_name(step, tick), line((detail, "dim")), width),)


def _step_lines(step: Step, columns: int, tick: int) -> Lines:
    first = justified(_step_name(step, tick), line((_seconds(step), "dim")), columns)
    detailed = step.state is StepState.RUNNING and step.detail
    return (first, line((f"  {step.detail}", "dim"))) if detailed else (first,)


def _step_name(step: Step, tick: int) -> Line:
    mark = _MARKS.get(step.state, (_SPINNER[tick % len(_SPINNER)], "busy"))
    return line(mark, " ", (step.name, {"pending": "dim", "running": "busy"}.get(step.state, "")))


def _seconds(step: Step) -> str:
    return "" if step.state is StepState.PENDING else f"{step.seconds:.1f} s"


def _domain_lines(domain: Domain, columns: int) -> Lines:
    name = line((f" {domain.letter} ", f"{domain.letter}!"), f" {domain.namespace}/{domain.name}")
    return (justified(name, _status(domain), columns), line((f"    {_channels(domain)}", "dim")))


def _domain_line(domain: Domain) -> Line:
    name = line((f" {domain.letter} ", f"{domain.letter}!"), f" {domain.namespace}/{domain.name}  ")
    return (*name, (f"{_channels(domain)}  ", "dim"), *_status(domain))


def _status(domain: Domain) -> Line:
    return line((domain.status, "good" if domain.status == "Ready" else "warn"))


def _channels(domain: Domain) -> str:
    channels = ", ".join(f"{one.channel} in {one.rack}" for one in domain.channels)
    return f"channel {channels}" if channels else "no channel yet"


def _count_lines(model: ClusterModel) -> Lines:
    return (
        line(("claims  ", "dim"), (_counts(model.counts.claims), "count")),
        line(("pods    ", "dim"), (_counts(model.counts.pods), "count")),
    )


def _count_line(model: ClusterModel) -> Line:
    claims, pods = _counts(model.counts.claims), _counts(model.counts.pods)
    return line(("claims ", "dim"), (claims, "count"), (" · pods ", "dim"), (pods, "count"))


def _counts(counts: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts) or "none"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
