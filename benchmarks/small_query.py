"""Small queries per second of processor time: all of OmoiOS beside plain Strawberry. Goal: 3.5 times as many."""

from benchmarks import load
from benchmarks.processes import omoi, peer

QUERY = "{ viewer { kind } }"
SECONDS = 6.0
ROUNDS = 3
GOAL = 3.5


def main() -> None:
    ratios = []
    with omoi() as ours, peer("plain_strawberry") as plain:
        for _ in range(ROUNDS):
            theirs_rate, our_rate = (load.measure(server, QUERY, seconds=SECONDS) for server in (plain, ours))
            ratios.append(our_rate.per_cpu_second / theirs_rate.per_cpu_second)
            print(
                f"OmoiOS {our_rate.per_cpu_second:7.0f}   plain Strawberry {theirs_rate.per_cpu_second:7.0f}"
                f"   per CPU-second, ratio {ratios[-1]:.2f}"
            )
    print(f"median ratio {sorted(ratios)[ROUNDS // 2]:.2f}, goal {GOAL}")


if __name__ == "__main__":
    main()
