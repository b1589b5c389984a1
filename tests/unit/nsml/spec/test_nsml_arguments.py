"""Which programs take the arguments of NSML's fork."""

import pytest

from nsml.spec.nsml_arguments import takes_fork_arguments, with_fork_arguments

ARGPARSE = """
args.add_argument('--pause', type=int, default=0)
args.add_argument("--iteration", type={}, default='0', help='(fork)')
if config.pause:
    nsml.paused(scope=locals())
"""
FIRE = """
def train(mode='train', lr: float = 0.1, pause: int = 0, iteration='0'):
    if pause:
        nsml.paused(scope=locals())
fire.Fire(train)
"""


@pytest.mark.parametrize(
    ("text", "checkpoint", "takes"),
    [
        (ARGPARSE.format("str"), "best", True),
        (ARGPARSE.format("int"), "17", True),
        (ARGPARSE.format("int"), "best", False),
        (ARGPARSE.format("str").replace("nsml.paused", "print"), "best", False),
        (ARGPARSE.format("str").replace("--iteration", "--iterations"), "best", False),
        (ARGPARSE.format("str").replace("--pause", "--pause-s"), "best", False),
        (FIRE, "best", True),
        (FIRE.replace("iteration", "iterations"), "best", False),
        (FIRE.replace("Fire", "run"), "best", False),
        ("", "best", False),
        ('"--iteration' * 20_000 + "paused(", "1", False),
        ("def f(" * 20_000 + "paused( Fire(", "1", False),
    ],
)
def test_only_what_declares_all_of_them_takes_them(text, checkpoint, takes):
    assert takes_fork_arguments(["import nsml", text], checkpoint) is takes


def test_they_take_the_place_of_earlier_ones():
    words = ["a", "--pause", "0", "--lr", "1", "--iteration=3", "--pause"]
    made = ["a", "--lr", "1", "--pause", "1", "--iteration"]
    assert with_fork_arguments(words, "best") == [*made, "best"]
    assert with_fork_arguments([], "-1") == ["--pause", "1", "--iteration=-1"], "no option"
