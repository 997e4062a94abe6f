"""The planner against the worked examples, against brute force, and against requests that make no sense."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.core.planning import DEFAULT_MIX, Node, Plan, plan
from pumasi.core.planning.explanation import best_fit, explain
from pumasi.errors import DoesNotFit, UsageError

MIXES: tuple[Mapping[int, float], ...] = (
    DEFAULT_MIX,
    {1: 1.0},
    {8: 1.0},
    {4: 0.5, 16: 0.5},
    {3: 0.3, 5: 0.3, 7: 0.4},
    {2: 0.1, 3: 0.2, 5: 0.3, 9: 0.25, 11: 0.15},
)


class Request(NamedTuple):
    nodes: list[Node]
    slots: int
    most_per_node: int | None = None
    mix: Mapping[int, float] = DEFAULT_MIX


Key = tuple[int, int, int, int, list[str]]
"""What the plan must be least in; fragmentation in hundredths, so that it is exact."""


def cluster(*frees: int) -> list[Node]:
    return [Node(f"node-{number}", free) for number, free in enumerate(frees, 1)]


def fragmentation(mix: Mapping[int, float], rest: int) -> int:
    return rest * sum(round(100 * part) for size, part in mix.items() if size > rest)


def reach(nodes: Sequence[Node]) -> tuple[int, int]:
    """The level that these nodes span, and how many domains of the level below."""
    levels = range(len(nodes[0].domains) + 1)
    level = next(level for level in levels if len({node.domains[level:] for node in nodes}) == 1)
    return level, len({node.domains[level - 1 :] for node in nodes}) if level else 1


def shares_of(node: Node, request: Request) -> list[tuple[int, int]]:
    """Every share that the node can have, with the fragmentation that it adds."""
    before = fragmentation(request.mix, node.free)
    most = min(node.free, request.most_per_node or node.free)
    return [(share, fragmentation(request.mix, node.free - share) - before) for share in range(1, most + 1)]


def least_added(options: Sequence[list[tuple[int, int]]], slots: int) -> int:
    """The least fragmentation with a share on each node, where together they can hold the slots."""
    sums = {0: 0}
    for shares in options:
        after: dict[int, int] = {}
        for held, added in sums.items():
            for share, change in shares:
                if held + share <= slots:
                    after[held + share] = min(added + change, after.get(held + share, added + change))
        sums = after
    return sums[slots]


def brute_force(request: Request) -> Key:
    """The least key of all choices of nodes."""
    usable = [node for node in request.nodes if node.free]
    options = {node.name: shares_of(node, request) for node in usable}
    best: Key | None = None
    for count in range(1, min(len(usable), request.slots) + 1):
        for chosen in combinations(usable, count):
            shares = [options[node.name] for node in chosen]
            head = (*reach(chosen), count)
            if sum(map(len, shares)) < request.slots or (best and head > best[:3]):
                continue
            key = (*head, least_added(shares, request.slots), sorted(node.name for node in chosen))
            best = min(best or key, key)
    assert best is not None
    return best


def key_of(placement: Mapping[str, int], request: Request) -> Key:
    chosen = [node for node in request.nodes if node.name in placement]
    added = sum(dict(shares_of(node, request))[placement[node.name]] for node in chosen)
    return (*reach(chosen), len(chosen), added, sorted(placement))


def check_against_brute_force(request: Request) -> None:
    found = plan(request.nodes, request.slots, most_per_node=request.most_per_node, mix=request.mix)
    key = key_of(found.placement, request)
    assert key == brute_force(request), request
    assert (found.level, found.domains, len(found.shares)) == key[:3]
    assert found.added == pytest.approx(key[3] / 100)
    assert sum(found.shares) == request.slots
    assert found.exact


def random_request(rng: random.Random, nodes: int, levels: int) -> Request:
    largest = rng.choice((2, 3, 5, 8, 12))
    racks, zones = rng.randint(2, 5), rng.randint(1, 2)
    names = rng.sample([f"n{number}" for number in range(nodes)], nodes)
    made = [
        Node(name, rng.randint(0, largest), (f"rack-{rng.randrange(racks)}", f"zone-{rng.randrange(zones)}")[:levels])
        for name in names
    ]
    made[0] = made[0]._replace(free=largest)
    most_per_node = rng.choice((None, None, rng.randint(1, largest)))
    room = sum(min(node.free, most_per_node or node.free) for node in made)
    return Request(made, rng.randint(1, room), most_per_node, rng.choice(MIXES))


def plan_within(chosen: Sequence[tuple[str, ...]], request: Request) -> Plan | None:
    """The plan within the chosen racks, as if they were one; none where it does not fit."""
    inside = [node._replace(domains=()) for node in request.nodes if node.domains in chosen]
    try:
        return plan(inside, request.slots, most_per_node=request.most_per_node, mix=request.mix)
    except DoesNotFit:
        return None


def best_racks(request: Request) -> tuple[int, int, float, list[str]]:
    """The fewest racks of one zone that will do, and the best of all plans in so many of them."""
    racks = sorted({node.domains for node in request.nodes})
    for many in range(1, len(racks) + 1):
        choices = (chosen for chosen in combinations(racks, many) if len({rack[1:] for rack in chosen}) == 1)
        plans = [found for found in (plan_within(chosen, request) for chosen in choices) if found]
        if plans:
            return min((many, *rating(found)) for found in plans)
    raise AssertionError("it does not fit into a zone")


def rating(found: Plan) -> tuple[int, float, list[str]]:
    return len(found.shares), round(found.added, 9), sorted(found.placement)


def request_for_racks(rng: random.Random, racks: int, nodes: int, zones: int) -> Request:
    """One that the largest zone has room for."""
    largest = rng.choice((2, 4, 8, 8, 16))
    frees = rng.choices([*range(largest + 1), *[largest] * rng.choice((0, 20))], k=nodes)
    names = rng.sample([f"n{number:02}" for number in range(nodes)], nodes)
    at = rng.choices([(f"rack-{rack}", f"zone-{rack % zones}") for rack in range(racks)], k=nodes)
    made = [Node(*fields) for fields in zip(names, frees, at, strict=True)]
    most = rng.choice((None, None, largest - 1))
    rooms: Counter[str] = Counter()
    for node in made:
        rooms[node.domains[-1]] += min(node.free, most or node.free)
    return Request(made, rng.randint(1, max(rooms.values())), most, rng.choice(MIXES))


class TestExamples:
    def test_the_smallest_number_of_nodes_is_used(self) -> None:
        assert plan(cluster(5, 3, 2), 6).shares == (5, 1)

    def test_a_node_that_can_stay_whole_stays_whole(self) -> None:
        found = plan(cluster(8, 5, 5), 10)
        assert found.placement == {"node-2": 5, "node-3": 5}
        assert found.shares == (5, 5)

    def test_which_node_gives_the_last_slot_depends_on_the_demand_mix(self) -> None:
        assert plan(cluster(5, 3, 2), 6).placement == {"node-1": 5, "node-2": 1}
        assert plan(cluster(5, 3, 2), 6, mix={3: 1.0}).placement == {"node-1": 5, "node-3": 1}

    def test_one_node_is_chosen_by_what_is_left_over_on_it(self) -> None:
        assert plan(cluster(8, 5, 3), 3).placement == {"node-3": 3}

    def test_of_equal_nodes_the_least_names_are_taken(self) -> None:
        nodes = [Node(name, 4) for name in ("d", "b", "c", "a")]
        assert plan(nodes, 8).placement == {"b": 4, "a": 4}

    def test_the_placement_is_in_the_order_of_the_nodes(self) -> None:
        nodes = [Node(name, 4) for name in ("c", "b", "a")]
        assert list(plan(nodes, 12).placement) == ["c", "b", "a"]

    def test_the_order_of_the_nodes_does_not_change_who_gets_what(self) -> None:
        rng = random.Random(5)
        for _ in range(200):
            request = random_request(rng, 8, rng.randint(0, 2))
            shuffled = rng.sample(request.nodes, len(request.nodes))
            found, again = (
                plan(n, request.slots, most_per_node=request.most_per_node) for n in (request.nodes, shuffled)
            )
            assert found.placement == again.placement

    def test_nodes_without_free_slots_get_nothing(self) -> None:
        assert plan(cluster(0, 3, 0, 3), 6).placement == {"node-2": 3, "node-4": 3}

    def test_a_limit_a_node_is_kept(self) -> None:
        assert plan(cluster(8, 5, 5), 10, most_per_node=4).shares == (4, 3, 3)

    def test_slots_are_spared_where_that_leaves_a_whole_request_free(self) -> None:
        found = plan(cluster(11, 11), 7, most_per_node=4, mix={8: 1.0})
        assert found.placement == {"node-1": 4, "node-2": 3}
        assert found.added == 7


class TestTopology:
    def test_one_rack_is_better_than_fewer_nodes(self) -> None:
        nodes = [Node("a", 4, ("r1",)), Node("b", 2, ("r2",)), Node("c", 2, ("r2",)), Node("d", 2, ("r2",))]
        found = plan(nodes, 6)
        assert found.placement == {"b": 2, "c": 2, "d": 2}
        assert (found.level, found.domains) == (0, 1)

    def test_two_racks_of_one_zone_are_better_than_two_zones(self) -> None:
        nodes = [
            Node("a", 8, ("r1", "east")),
            Node("b", 8, ("r2", "west")),
            Node("c", 6, ("r3", "west")),
            Node("d", 6, ("r4", "west")),
        ]
        found = plan(nodes, 12)
        assert found.placement == {"c": 6, "d": 6}
        assert (found.level, found.domains) == (1, 2)

    def test_the_largest_racks_are_not_taken_when_smaller_ones_need_fewer_nodes(self) -> None:
        nodes = [Node(f"a{i}", 1, ("many",)) for i in range(10)] + [Node("b", 8, ("one",)), Node("c", 8, ("other",))]
        assert plan(nodes, 16).placement == {"b": 8, "c": 8}

    def test_racks_of_one_name_in_two_zones_are_two_racks(self) -> None:
        nodes = [Node("a", 4, ("r1", "east")), Node("b", 4, ("r1", "west"))]
        assert plan(nodes, 8).level == 2

    def test_without_domains_the_whole_cluster_is_one(self) -> None:
        found = plan(cluster(4, 4), 8)
        assert (found.level, found.domains) == (0, 1)


class TestBruteForce:
    @pytest.mark.parametrize("seed", range(10))
    def test_a_flat_plan_is_the_least_of_all(self, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            check_against_brute_force(random_request(rng, rng.randint(1, 7), 0))

    @pytest.mark.parametrize("levels", [1, 2])
    @pytest.mark.parametrize("seed", range(8))
    def test_a_plan_across_domains_is_the_least_of_all(self, seed: int, levels: int) -> None:
        rng = random.Random(seed)
        for _ in range(200):
            check_against_brute_force(random_request(rng, rng.randint(2, 8), levels))

    @pytest.mark.parametrize(("racks", "nodes", "zones"), [(7, 40, 1), (12, 60, 2), (14, 80, 3), (30, 150, 15)])
    @pytest.mark.parametrize("seed", range(3))
    def test_of_many_racks_the_best_are_chosen(self, seed: int, racks: int, nodes: int, zones: int) -> None:
        """Too many nodes to try all of them, but every choice of racks can be tried."""
        rng = random.Random(seed)
        for _ in range(30):
            request = request_for_racks(rng, racks, nodes, zones)
            found = plan(request.nodes, request.slots, most_per_node=request.most_per_node, mix=request.mix)
            assert (found.domains, *rating(found)) == best_racks(request), request
            assert found.exact

    @settings(max_examples=150)
    @given(st.data())
    def test_any_plan_is_the_least_of_all(self, data: st.DataObject) -> None:
        frees = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
        racks = data.draw(st.lists(st.integers(0, 2), min_size=len(frees), max_size=len(frees)))
        nodes = [Node(f"n{i}", free, (f"r{rack}",)) for i, (free, rack) in enumerate(zip(frees, racks, strict=True))]
        most = data.draw(st.none() | st.integers(1, 9))
        slots = data.draw(st.integers(1, sum(min(free, most or free) for free in frees)))
        check_against_brute_force(Request(nodes, slots, most, data.draw(st.sampled_from(MIXES))))


class TestSize:
    def test_ten_thousand_nodes_are_as_exact_as_ten(self) -> None:
        """Where there are enough nodes of each size, more of them with later names change nothing."""
        few = [Node(f"n{i:05}", free) for i, free in enumerate(free for free in range(1, 9) for _ in range(30))]
        many = [*few, *(Node(f"x{i}-{free}", free) for i in range(1220) for free in range(1, 9))]
        for slots in (63, 100, 199, 233):
            assert plan(few, slots).placement == plan(many, slots).placement

    def test_numbers_may_be_huge(self) -> None:
        huge = 10**30
        assert plan(cluster(huge, 3, 2), huge + 1).shares == (huge, 1)
        assert plan(cluster(huge, huge), 5).shares == (5,)

    @pytest.mark.parametrize("most", [0, 20, 200])
    def test_a_search_that_takes_too_long_is_cut_short_and_says_so(
        self, most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pumasi.core.planning.exchange.MOST_STEPS", most)
        monkeypatch.setattr("pumasi.core.planning.choice.MOST_STEPS", most)
        rng, cut_short = random.Random(most), 0
        for _ in range(300):
            request = random_request(rng, 8, rng.randint(0, 2))
            found = plan(request.nodes, request.slots, most_per_node=request.most_per_node, mix=request.mix)
            key, best = key_of(found.placement, request), brute_force(request)
            assert sum(found.shares) == request.slots
            assert key == best if found.exact else key[:2] == best[:2]
            cut_short += not found.exact
        assert cut_short

    def test_a_search_among_billions_ends(self) -> None:
        rng = random.Random(1)
        nodes = [Node(f"n{i}", rng.randint(1, 10**9)) for i in range(2000)]
        found = plan(nodes, 10**11)
        assert not found.exact
        assert sum(found.shares) == 10**11
        assert "too many choices" in " ".join(explain(nodes, 10**11, found))


class TestRefusals:
    def test_too_many_slots_are_refused_with_what_is_missing(self) -> None:
        with pytest.raises(DoesNotFit) as caught:
            plan(cluster(5, 3, 2), 12)
        assert caught.value.message == "12 slots do not fit: 10 are free on 3 nodes, so 2 are missing."
        assert caught.value.hint == "Ask for at most 10, or wait until others have ended."

    def test_the_limit_a_node_is_named_when_it_is_what_stands_in_the_way(self) -> None:
        with pytest.raises(DoesNotFit) as caught:
            plan(cluster(5, 3, 2), 9, most_per_node=2)
        assert caught.value.message == (
            "9 slots do not fit with at most 2 a node: 10 are free on 3 nodes, but only 6 of them within that limit, "
            "so 3 are missing."
        )
        assert caught.value.hint == "Ask for at most 6, or allow 4 a node, or wait until others have ended."

    def test_huge_numbers_are_refused_like_others(self) -> None:
        with pytest.raises(DoesNotFit, match="but only 10 of them") as caught:
            plan(cluster(10**30, 3), 10**30 + 1, most_per_node=7)
        assert f"allow {10**30 - 2} a node" in caught.value.hint

    def test_the_limit_that_the_hint_names_is_the_least_that_does(self) -> None:
        rng = random.Random(3)
        for _ in range(200):
            nodes = cluster(*rng.choices(range(1, 12), k=6))
            slots = rng.randint(7, sum(node.free for node in nodes))
            with pytest.raises(DoesNotFit) as caught:
                plan(nodes, slots, most_per_node=1)
            enough = int(caught.value.hint.split("allow ")[1].split()[0])
            assert sum(plan(nodes, slots, most_per_node=enough).shares) == slots
            with pytest.raises(DoesNotFit):
                plan(nodes, slots, most_per_node=enough - 1)

    def test_the_limit_a_node_is_not_named_when_there_is_too_little_anyway(self) -> None:
        with pytest.raises(DoesNotFit, match="11 slots do not fit: 10 are free"):
            plan(cluster(5, 3, 2), 11, most_per_node=2)

    @pytest.mark.parametrize("nodes", [[], cluster(0, 0)])
    def test_nothing_free_is_refused(self, nodes: list[Node]) -> None:
        with pytest.raises(DoesNotFit, match="1 slot does not fit: 0 are free") as caught:
            plan(nodes, 1)
        assert caught.value.hint == "Wait until others have ended."

    @pytest.mark.parametrize("slots", [0, -1])
    def test_less_than_one_slot_is_refused(self, slots: int) -> None:
        with pytest.raises(UsageError, match="slots were asked for"):
            plan(cluster(5), slots)

    def test_a_limit_below_one_is_refused(self) -> None:
        with pytest.raises(UsageError, match="leaves none"):
            plan(cluster(5), 1, most_per_node=0)

    def test_two_nodes_of_one_name_are_refused(self) -> None:
        with pytest.raises(UsageError, match="2 nodes have the name a"):
            plan([Node("a", 1), Node("b", 1), Node("a", 2)], 1)

    def test_less_than_nothing_free_is_refused(self) -> None:
        with pytest.raises(UsageError, match="node-2 has -1 free slots"):
            plan(cluster(3, -1), 1)

    def test_nodes_in_different_numbers_of_domains_are_refused(self) -> None:
        with pytest.raises(UsageError, match=r"Node a is in 2 domains \(r1, z1\), but node b in 1"):
            plan([Node("a", 1, ("r1", "z1")), Node("b", 1, ("r1",))], 1)

    @pytest.mark.parametrize(
        ("mix", "complaint"),
        [
            ({}, "add up to 0"),
            ({1: 0.5, 2: 0.4}, "add up to 0.9"),
            ({0: 1.0}, "requests for 0 slots"),
            ({-2: 1.0}, "requests for -2 slots"),
            ({True: 1.0}, "requests for True slots"),
            ({1: 1.5, 2: -0.5}, "a share of 1.5"),
            ({1: float("nan")}, "a share of nan"),
        ],
    )
    def test_a_demand_mix_that_makes_no_sense_is_refused(self, mix: Mapping[int, float], complaint: str) -> None:
        with pytest.raises(UsageError, match=complaint) as caught:
            plan(cluster(5), 1, mix=mix)
        assert caught.value.hint

    def test_shares_of_the_mix_may_be_rounded(self) -> None:
        assert plan(cluster(5), 1, mix={1: 0.3333333, 2: 0.3333333, 3: 0.3333333}).shares == (1,)


class TestExplanation:
    def test_it_tells_how_many_nodes_which_and_why(self) -> None:
        nodes = cluster(8, 5, 5)
        assert explain(nodes, 10, plan(nodes, 10)) == [
            "10 slots on 2 nodes: 5 on node-2 and 5 on node-3.",
            "It takes at least 2 nodes: the largest node can take 8.",
            "Fragmentation, the free slots that the next request can probably not use, goes from 2.00 to 0.00 (-2.00): "
            "no other choice of so few nodes leaves less.",
            "Best-fit, the largest nodes first, would have taken 8 on node-1 and 2 on node-2, and left 2.05 more.",
            "The demand mix that this is reckoned with: of all requests 50 % need 1, 15 % need 2, 15 % need 4 and "
            "20 % need 8 slots on one node.",
            "The chief, rank 0, is on node-2: no node has a smaller share than its 5.",
        ]

    def test_it_tells_where_the_chief_is(self) -> None:
        nodes = cluster(5, 3, 2)
        assert explain(nodes, 6, plan(nodes, 6))[-1] == (
            "The chief, rank 0, is on node-2: no node has a smaller share than its 1."
        )

    def test_it_tells_the_limit_and_the_mix_that_were_given(self) -> None:
        nodes = cluster(8, 5, 5)
        mix = {8: 1.0}
        text = " ".join(explain(nodes, 10, plan(nodes, 10, most_per_node=4, mix=mix), most_per_node=4, mix=mix))
        assert "the 2 largest nodes can take 8 with at most 4 a node" in text
        assert "100 % need 8 slots" in text

    def test_it_tells_that_one_node_is_enough(self) -> None:
        text = " ".join(explain(cluster(8, 5), 5, plan(cluster(8, 5), 5)))
        assert "One node is enough: node-2 has room for all." in text
        assert "Best-fit, the largest nodes first, would have done the same." in text

    def test_it_tells_which_domains_and_why_so_many(self) -> None:
        nodes = [Node(f"n{i}", 4, (f"rack-{i}", "west")) for i in range(8)]
        assert explain(nodes, 4, plan(nodes, 4))[1] == (
            "All of them are in rack-0 in west: one of the narrowest domains has room for all."
        )
        assert explain(nodes, 8, plan(nodes, 8))[1] == (
            "No single domain has room for 8: the largest of level 0, rack-0 in west, can take 4. So they span 2, the "
            "fewest that will do, within west: rack-0 and rack-1."
        )
        assert "rack-5 and 2 more" in explain(nodes, 32, plan(nodes, 32))[1]

    def test_many_nodes_are_counted_not_listed(self) -> None:
        nodes = cluster(*[8] * 20)
        assert explain(nodes, 150, plan(nodes, 150))[0] == "150 slots on 19 nodes: 8 on 18 nodes and 6 on 1 node."

    @given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
    def test_best_fit_never_beats_the_plan(self, frees: list[int], data: st.DataObject) -> None:
        nodes = cluster(*frees, 1)
        slots = data.draw(st.integers(1, sum(frees) + 1))
        placement = best_fit(nodes, slots, slots)
        assert sum(placement.values()) == slots
        assert all(0 < placement[node.name] <= node.free for node in nodes if node.name in placement)
        request = Request(nodes, slots)
        assert key_of(plan(nodes, slots).placement, request) <= key_of(placement, request)
