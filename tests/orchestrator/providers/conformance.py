"""What every provider has to do. A subclass with a fixture `provider`, with room for four, runs it against that."""

import asyncio

import pytest

from orchestrator.providers import MachineState, OrderRefused, ProviderFull
from tests.orchestrator.providers.boxes import (
    LEAVES_CHILDREN,
    ended,
    order,
    outcome,
    running,
    running_with,
    says,
    unmistakable_seconds,
)
from tests.servers import until

ENVIRONMENT = "import json, os\nprint(json.dumps(dict(os.environ)))"


class Conformance:
    """`own_environment` names what the provider itself gives to a worker."""

    own_environment: frozenset[str] = frozenset()

    async def test_a_worker_runs_and_its_end_is_told(self, provider):
        """The worker of an order runs in its home; its output and its exit code can be read after its end."""
        done = await outcome(
            provider, order("import os, sys\nprint('I am in', os.environ['HOME'], os.getcwd())\nsys.exit(7)")
        )
        assert (done.machine.state, done.machine.exit_code) == (MachineState.ENDED, 7)
        assert done.machine.out_of_memory is False
        _, _, _, home, folder = done.lines[0].split()
        assert home == folder

    async def test_death_by_a_signal_is_told(self, provider):
        """A worker that was killed has the exit code of its signal, and is not taken for one without memory."""
        done = await outcome(provider, order("import os\nos.kill(os.getpid(), 9)"))
        assert (done.machine.exit_code, done.machine.out_of_memory) == (137, False)

    async def test_the_environment_is_the_order(self, provider):
        """A worker has the environment that was ordered, the provider's own, and nothing of the server's."""
        env = {"TASK_ID": "17", "OMOI_SANDBOX_TOKEN": 's3cret "quoted" $HOME\nand a line ü', "EMPTY": ""}
        found = (await outcome(provider, order(ENVIRONMENT, env=env))).said
        assert {name: found[name] for name in env} == env
        assert found.keys() == env.keys() | self.own_environment

    async def test_files_are_there(self, provider):
        """The files of an order lie in the worker's home, byte for byte, folders made."""
        program = "import json, pathlib\nprint(json.dumps(list(pathlib.Path('.omoi/resume/a').read_bytes())))"
        content = bytes(range(256))
        assert (await outcome(provider, order(program, files={".omoi/resume/a": content}))).said == list(content)

    @pytest.mark.parametrize("name", ["/tmp/omoi-never-written", "../a", "a/../../b", ""])
    async def test_files_stay_below_home(self, provider, name):
        """An order that would write anywhere else is refused."""
        with pytest.raises(OrderRefused):
            await provider.create(order(files={name: b""}))

    async def test_ordered_twice_is_one(self, provider):
        """The same order again gives the machine that runs, and starts no second worker."""
        ordered = order()
        async with running(provider, ordered) as first:
            await says(provider, ordered.name, "up")
            assert await provider.create(ordered) == first
            assert await provider.log(ordered.name, 10) == "up"

    async def test_ordered_at_once_is_one(self, provider):
        """Many who order the same at the same moment get the same machine."""
        ordered = order()
        async with running(provider, ordered) as first:
            pass
        machines = await asyncio.gather(*(provider.create(ordered) for _ in range(5)))
        await says(provider, ordered.name, "up")
        assert (machines, await provider.log(ordered.name, 10)) == ([first] * 5, "up")
        await provider.delete(ordered.name)

    async def test_an_ended_one_is_not_started_again(self, provider):
        """A name is never used for new work: the same order after the end gives the ended machine."""
        ordered = order("print('once')")
        async with running(provider, ordered):
            before = await ended(provider, ordered.name)
            assert await provider.create(ordered) == before
            assert await provider.log(ordered.name, 10) == "once"

    async def test_others_are_not_adopted(self, provider):
        """A machine with the name, but not the labels, is somebody else's."""
        ordered = order()
        async with running(provider, ordered):
            with pytest.raises(OrderRefused, match="name"):
                await provider.create(order(name=ordered.name, labels={"deployment": "test", "task": "2"}))

    async def test_the_list_is_of_this_deployment(self, provider):
        """The list has what carries our label, ended ones too, and nothing of other deployments."""
        ours, done, others = order(), order("pass"), order(labels={"deployment": "elsewhere"})
        async with running(provider, ours), running(provider, done), running(provider, others):
            await ended(provider, done.name)
            found = {machine.name: machine.state for machine in await provider.list()}
            assert found == {ours.name: MachineState.RUNNING, done.name: MachineState.ENDED}

    async def test_the_unknown(self, provider):
        """What is not there is nothing to get, has no log, and is deleted already."""
        assert await provider.get("omoi-test-unknown") is None
        assert await provider.log("omoi-test-unknown", 10) == ""
        await provider.delete("omoi-test-unknown")

    async def test_the_log_ends_with_the_newest(self, provider):
        """So many lines as asked for, the last ones, standard error among them."""
        program = "import sys\nfor n in range(50): print(n, file=sys.stderr if n % 2 else sys.stdout, flush=True)"
        ordered = order(program)
        async with running(provider, ordered):
            await ended(provider, ordered.name)
            assert await provider.log(ordered.name, 3) == "47\n48\n49"

    async def test_full(self, provider):
        """One more than there is room for is refused for now, and succeeds when there is room again."""
        ordered = [order() for _ in range(provider.capabilities().machines + 1)]
        for one in ordered[:-1]:
            await provider.create(one)
        with pytest.raises(ProviderFull):
            await provider.create(ordered[-1])
        assert await provider.create(ordered[0])
        await provider.delete(ordered[0].name)
        assert await provider.create(ordered[-1])
        for one in ordered:
            await provider.delete(one.name)

    async def test_deleting_ends_everything(self, provider):
        """What tore itself off from the worker ends with it; deleting again is nothing."""
        seconds = unmistakable_seconds()
        ordered = order(LEAVES_CHILDREN.format(seconds=seconds))
        await provider.create(ordered)
        await says(provider, ordered.name, "up")
        await until(lambda: len(running_with(seconds)) >= 5)
        await provider.delete(ordered.name)
        assert running_with(seconds) == []
        assert await provider.get(ordered.name) is None
        await provider.delete(ordered.name)

    async def test_deleting_ends_who_hangs(self, provider):
        """A worker that was stopped, and so listens to nothing, runs for its provider, and goes like any other."""
        seconds = unmistakable_seconds()
        ordered = order(f"""
            import os, signal, subprocess
            subprocess.Popen(["sleep", "{seconds}"])
            print("up", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        """)
        await provider.create(ordered)
        await says(provider, ordered.name, "up")
        assert (await provider.get(ordered.name)).state is MachineState.RUNNING
        await provider.delete(ordered.name)
        assert (running_with(seconds), await provider.get(ordered.name)) == ([], None)

    async def test_the_end_of_the_worker_is_the_end_of_all(self, provider):
        """What a worker leaves behind does not outlive it."""
        seconds = unmistakable_seconds()
        program = LEAVES_CHILDREN.format(seconds=seconds).replace("time.sleep(3600)", "os._exit(3)")
        ordered = order(program)
        async with running(provider, ordered):
            machine = await ended(provider, ordered.name)
            assert (machine.exit_code, running_with(seconds)) == (3, [])
