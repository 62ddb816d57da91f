"""The whole picture: racks, and around them the story, the legend and the counts. A pure function."""

from imex_dra.picture import trays
from imex_dra.picture.ink import Line, Lines, beside, cut, filled, line, widest
from imex_dra.picture.scene import Domain, Progress, Scene, Step, Story

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PANEL, _PANEL_MOST, _GAP = 33, 48, 3
_MARKS = {Progress.PENDING: ("·", "dim"), Progress.DONE: ("✓", "good"), Progress.FAILED: ("✗", "bad")}

_NODE = line(("●", "fine"), ("○", "bad"), (" node Ready, or not", "dim"))
_IMEX = line(("◆", "fine"), ("◇", "warn"), (" IMEX READY, or not", "dim"))
_BROKEN = line(("✕", "bad"), (" fabric broken", "dim"))
_CHANNEL = line(("▇", "A"), (" channel in a container", "dim"))
_SEAT = line(("░", "A?"), (" seat allocated, no channel yet", "dim"))
_KEYS = (_NODE, _IMEX, _BROKEN, _CHANNEL, _SEAT)
_SHORT_KEYS = ((*_NODE, ("   ", ""), *_IMEX, ("   ", ""), *_BROKEN), (*_CHANNEL, ("   ", ""), *_SEAT))


def picture(scene: Scene, story: Story, *, width: int, height: int, tick: int = 0) -> Lines:
    """Never wider or higher than the room. `tick` turns the spinner."""
    if scene.racks:
        lines = _with_panel(scene, story, width, height, tick) or _stacked(scene, story, width, height, tick)
    else:
        lines = (_title(story, width), line(), *_panel(scene, story, min(width, _PANEL_MOST), height, tick))
    return tuple(cut(one, width) for one in lines[:height])


def _with_panel(scene: Scene, story: Story, width: int, height: int, tick: int) -> Lines:
    """Empty where racks, a line for each tray, leave no room for it."""
    head = (_title(story, width), line())
    drawn = trays.racks(scene.racks, width - _PANEL - _GAP, height - len(head))
    room = min(width - widest(drawn) - _GAP, _PANEL_MOST)
    panel = _panel(scene, story, room, height - len(head), tick)
    fits = len(drawn) > len(scene.racks) and len(panel) + len(head) <= height
    return (*head, *beside(drawn, panel, _GAP)) if fits else ()


def _panel(scene: Scene, story: Story, room: int, height: int, tick: int) -> Lines:
    """What the symbols mean is left out first."""
    steps = tuple(one for step in story.steps for one in _told(step, room, tick))
    domains = tuple(one for domain in scene.domains for one in _explained(domain, room))
    told = _spaced(steps, domains, _counts(scene) if scene.racks else ())
    explained = _spaced(told, _KEYS if scene.racks else ())
    return tuple(cut(one, room) for one in (explained if len(explained) <= height else told))


def _spaced(*sections: Lines) -> Lines:
    """With an empty line between those that have something to say."""
    return tuple(one for section in filter(None, sections) for one in (line(), *section))[1:]


def _stacked(scene: Scene, story: Story, width: int, height: int, tick: int) -> Lines:
    head = (_title(story, width), *_now(story, width, tick))
    foot = (*map(_entry, scene.domains), _one_line(scene))
    drawn = trays.racks(scene.racks, width, height - len(head) - len(foot))
    return (*head, *drawn, *foot, *(key for key in _SHORT_KEYS if widest([key]) <= width))


def _title(story: Story, width: int) -> Line:
    return filled(line((story.title, "title")), line((clock(story.seconds), "count")), width)


def _now(story: Story, width: int, tick: int) -> Lines:
    step = story.current
    if step is None:
        return ()
    words = ", ".join(filter(None, (step.detail, _seconds(step))))
    return (filled(_named(step, tick), line((words, "dim")), width),)


def _told(step: Step, room: int, tick: int) -> Lines:
    told = filled(_named(step, tick), line((_seconds(step), "dim")), room)
    detailed = step.progress is Progress.RUNNING and step.detail
    return (told, line((f"  {step.detail}", "dim"))) if detailed else (told,)


def _named(step: Step, tick: int) -> Line:
    mark = _MARKS.get(step.progress, (SPINNER[tick % len(SPINNER)], "busy"))
    return line(mark, " ", (step.name, {"pending": "dim", "running": "busy"}.get(step.progress, "")))


def _seconds(step: Step) -> str:
    return "" if step.progress is Progress.PENDING else f"{step.seconds:.1f} s"


def _explained(domain: Domain, room: int) -> Lines:
    named = line((f" {domain.letter} ", f"{domain.letter}!"), f" {domain.namespace}/{domain.name}")
    return (filled(named, _status(domain), room), line((f"    {_channels(domain)}", "dim")))


def _entry(domain: Domain) -> Line:
    named = line((f" {domain.letter} ", f"{domain.letter}!"), f" {domain.namespace}/{domain.name}  ")
    return (*named, (f"{_channels(domain)}  ", "dim"), *_status(domain))


def _status(domain: Domain) -> Line:
    return line((domain.status, "good" if domain.status == "Ready" else "warn"))


def _channels(domain: Domain) -> str:
    held = ", ".join(f"{place.channel} in {place.rack}" for place in domain.places)
    return f"channel {held}" if held else "no channel yet"


def _counts(scene: Scene) -> Lines:
    return (
        line(("claims  ", "dim"), (_each(scene.tally.claims), "count")),
        line(("pods    ", "dim"), (_each(scene.tally.pods), "count")),
    )


def _one_line(scene: Scene) -> Line:
    claims, pods = _each(scene.tally.claims), _each(scene.tally.pods)
    return line(("claims ", "dim"), (claims, "count"), (" · pods ", "dim"), (pods, "count"))


def _each(counted: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counted) or "none"


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
