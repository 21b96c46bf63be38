"""Which policy suits a group of workers? Ask in virtual time, before spending real time."""

from paceline import Simulation, simulate

group = Simulation(intervals=(1.0, 1.1, 1.3, 4.0), jitter=0.05, duration=1000)
for policy in ("bsp", "ssp:staleness=3", "elastic-bsp", "backup:k=3"):
    summary = simulate(policy, group)
    print(f"{policy:<16} {summary.iterations_per_second:.2f} iterations/s, {summary.waiting_share:.0%} waiting")
    if summary.longest_wait:
        print(f"{'':<16} longest: {summary.longest_wait.reason}")
