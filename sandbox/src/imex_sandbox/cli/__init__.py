"""The commands that the sandbox adds to `imex`, through the entry point group `imex.commands`."""

from imex_dra.cli.commands import Command

_COMMANDS = (
    Command(
        "demo", "imex_sandbox.cli.demo:command", "Run the driver on two simulated racks, and check every step."
    ),
    Command("up", "imex_sandbox.cli.up:command", "Start simulated racks on this machine."),
    Command("down", "imex_sandbox.cli.down:command", "Stop simulated racks that imex up started."),
    Command("fault", "imex_sandbox.cli.fault:command", "Inject a fault into running simulated racks, or undo it."),
    Command(
        "simulate-node",
        "imex_sandbox.cli.simulatenode:command",
        "Make the directory of a simulated node, for a cluster without GPUs.",
    ),
    Command(
        "bandwidth",
        "imex_sandbox.cli.softimex:bandwidth",
        "Copy through imported memory between all ranks of a job on simulated nodes.",
    ),
    Command(
        "allreduce",
        "imex_sandbox.cli.softimex:allreduce",
        "Run a verified all-reduce over all ranks of a job on simulated nodes.",
    ),
)
COMMANDS = tuple(command._replace(section="Simulated racks") for command in _COMMANDS)
