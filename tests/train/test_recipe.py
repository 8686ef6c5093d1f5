"""Recipes: what they say, that files and presets agree with the paper, and that carrying one out can be interrupted."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
import torch

import bnn
from bnn.functional.noise import tails
from bnn.train import (
    DivergenceError,
    Recipe,
    RunFolder,
    Schedule,
    build,
    converted_stage,
    execute,
    load_run,
    presets,
    run_recipe,
)

CONFIGS = pathlib.Path(__file__).parents[2] / "configs" / "paper"
TINY = Recipe(
    data={"name": "digits", "first": 200, "validation": 0.2},
    net={"name": "fcn", "hidden": [16]},
    method={"inference": "inducing", "inducing_rows": 4, "inducing_cols": 4},
    schedule=Schedule(epochs=1, batch_size=40),
)
QUIET: dict[str, Any] = {"tensorboard": False, "progress": False}


@pytest.mark.parametrize(
    ("config", "preset"),
    [
        ("cifar10_ffg_w", "cifar10-resnet50-ffg-w"),
        ("cifar10_ffg_u", "cifar10-resnet18-ffg-u"),
        ("cifar10_ensemble_u", "cifar10-resnet50-ensemble-u"),
        ("cifar100_ffg_w", "cifar100-resnet18-ffg-w"),
        ("cifar100_ffg_u", "cifar100-resnet50-ffg-u"),
        ("cifar100_ensemble_u", "cifar100-resnet50-ensemble-u"),
        ("ablation_resnet18_ffg_u", "ablation-ffg-u"),
        ("ablation_resnet18_ensemble_u", "ablation-ensemble-u"),
    ],
)
def test_presets_convert_as_the_configurations_say(config: str, preset: str) -> None:
    stored = json.loads((CONFIGS / f"{config}.json").read_text())
    method = Recipe.preset(f"paper/{preset}").method
    assert json.loads(json.dumps(method)) == stored


def test_every_method_data_and_network_of_the_paper_has_a_preset() -> None:
    methods = ("deterministic", "ensemble-w", "ffg-w", "ffg-u", "ensemble-u")
    for data in ("cifar10", "cifar100"):
        for net in ("resnet18", "resnet50"):
            for method in methods:
                recipe = presets()[f"paper/{data}-{net}-{method}"]
                assert recipe.data["name"] == data
                assert recipe.net == {"name": net, "kernel_size": 3, "remove_maxpool": True}
                assert recipe.schedule.batch_size == 100
                assert recipe.schedule.scale_rate is None


# epochs, optimiser, rate, milestones, warm-up, annealing: the paper's appendix, sentence by sentence
SCHEDULES = {
    "cifar10-resnet18-deterministic": (200, "adam", 3e-4, (), 0, 0),
    "cifar100-resnet18-deterministic": (200, "sgd", 0.1, (60, 120, 160), 0, 0),
    "cifar10-resnet50-ffg-w": (200, "adam", 3e-4, (), 100, 50),
    "cifar100-resnet50-ffg-w": (300, "adam", 1e-3, (200,), 100, 50),
    "cifar10-resnet50-ffg-u": (300, "adam", 1e-3, (200,), 100, 50),
    "cifar100-resnet50-ensemble-u": (300, "adam", 1e-3, (200,), 100, 50),
    "ablation-ffg-u": (100, "adam", 3e-4, (), 50, 40),
}


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_schedules_of_the_paper(name: str) -> None:
    s = Recipe.preset(f"paper/{name}").schedule
    assert (s.epochs, s.optimiser, s.lr, s.milestones, s.warmup, s.anneal) == SCHEDULES[name]


def test_presets_of_the_paper_train_inducing_weights_by_whole_weights() -> None:
    paper = {name: recipe for name, recipe in presets().items() if name.startswith("paper/")}
    assert {name for name, recipe in paper.items() if recipe.schedule.sampling == "weight"} == {
        name for name in paper if name.endswith("-u")
    }


def test_ensemble_w_is_five_networks_trained_alone() -> None:
    recipe = Recipe.preset("paper/cifar10-resnet50-ensemble-w")
    assert recipe.members == 5
    assert not recipe.together
    assert recipe.schedule == Recipe.preset("paper/cifar10-resnet50-deterministic").schedule


@pytest.mark.parametrize("name", list(presets()))
def test_presets_survive_json_and_name_values_that_exist(name: str) -> None:
    recipe = Recipe.preset(name)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert recipe.about
    for value in recipe.ours:
        part, _, field = value.partition(".")
        assert value == "all" or part in ("method", "schedule")
        assert part != "schedule" or field in Schedule.names()


def test_files_in_json_and_toml_say_the_same(tmp_path: pathlib.Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(TINY.to_dict()))
    (tmp_path / "r.toml").write_text(
        '[data]\nname = "digits"\nfirst = 200\nvalidation = 0.2\n[net]\nname = "fcn"\nhidden = [16]\n'
        '[method]\ninference = "inducing"\ninducing_rows = 4\ninducing_cols = 4\n'
        "[schedule]\nepochs = 1\nbatch_size = 40\n"
    )
    assert Recipe.from_file(tmp_path / "r.json") == Recipe.from_file(tmp_path / "r.toml") == TINY


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dta": {}}, "unknown field 'dta' .did you mean 'data'"),
        ({"data": {"first": 3}}, "data must have one of name, csv, folder, arrays"),
        ({"net": {}}, "net must have a name"),
        ({"method": {"inference": "inducng"}}, "did you mean 'inducing'"),
        ({"method": {"inference": "deterministic", "prior_sd": 1}}, "has no options"),
        ({"schedule": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"kl_weights": [1.0], "method": {"inference": "deterministic"}}, "need a Bayesian method"),
        ({"kl_weights": [-1.0]}, "a weight in kl_weights must be"),
        ({"pretrain": {}, "weights": "net.safetensors"}, "not both"),
    ],
)
def test_a_bad_recipe_says_what_is_wrong(change: dict[str, Any], message: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**TINY.to_dict(), **change}))
    with pytest.raises(ValueError, match=message) as caught:
        Recipe.from_file(path)
    assert "r.json" in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}])
def test_networks_take_the_channels_of_the_data(options: dict[str, Any]) -> None:
    net = build.build_net({"name": "resnet18", **options}, (1, 32, 32), 7)
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 7)


def test_unknown_presets_networks_and_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'ours/from-trained'"):
        Recipe.preset("ours/from-traind")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        Recipe.from_file(tmp_path / "none.json")
    with pytest.raises(ValueError, match="unknown network 'vgg'"):
        run_recipe(TINY.but(net={"name": "vgg"}))
    (tmp_path / "r.yaml").write_text("a: 1")
    with pytest.raises(ValueError, match=r"a .json or a .toml file"):
        Recipe.from_file(tmp_path / "r.yaml")


def test_a_folder_without_a_checkpoint_is_free(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DivergenceError):
        run_recipe(TINY.but(schedule={"lr": 1e30}), tmp_path / "run", **QUIET)
    run_recipe(TINY, tmp_path / "run", **QUIET)
    with pytest.raises(ValueError, match=r"schedule.lr was .*, is now 0.5"):
        run_recipe(TINY.but(schedule={"lr": 0.5}), tmp_path / "run", **QUIET)


def test_a_run_reads_back_without_its_data(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_recipe(TINY, tmp_path / "run", **QUIET)
    monkeypatch.setattr(execute, "build_data", None)
    again = load_run(tmp_path / "run")
    for name, value in outcome.net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], value)
    raw = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(again.preparation(raw), outcome.preparation(raw))
    assert again.classes == outcome.classes == tuple("0123456789")


def test_validation_nll_chooses_the_kl_weight(tmp_path: pathlib.Path) -> None:
    recipe = TINY.but(kl_weights=(100.0, 0.1), schedule={"epochs": 3, "lr": 1e-2})
    outcome = run_recipe(recipe, tmp_path / "run", **QUIET)
    assert outcome.candidates is not None
    assert outcome.recipe.schedule.kl_weight == 0.1  # a KL of 100 leaves nothing to learn
    assert outcome.candidates["0.1"] < outcome.candidates["100.0"]
    alone = run_recipe(TINY.but(schedule={"epochs": 3, "lr": 1e-2, "kl_weight": 0.1}), **QUIET)
    for name, value in alone.net.state_dict().items():
        assert torch.equal(outcome.net.state_dict()[name], value)
    assert load_run(tmp_path / "run").recipe == outcome.recipe


def test_choosing_needs_validation_data() -> None:
    with pytest.raises(ValueError, match="needs validation data"):
        run_recipe(TINY.but(data={"name": "digits", "first": 100}, kl_weights=(1.0,)), **QUIET)


def test_a_compressed_ensemble_is_one_recipe(tmp_path: pathlib.Path) -> None:
    recipe = TINY.but(members=2, pretrain={"epochs": 1, "batch_size": 40})
    outcome = run_recipe(recipe, tmp_path / "run", **QUIET)
    first, second = outcome.net.members
    assert not torch.equal(first[1].Linear0.z_row, second[1].Linear0.z_row)
    again = load_run(tmp_path / "run")
    x = torch.rand(4, 1, 8, 8)
    draw = {"samples": 4, "batch_size": 2}
    one, two = (
        bnn.predict(net, x, generator=torch.Generator().manual_seed(0), **draw).probs
        for net in (outcome.net, again.net)
    )
    assert torch.equal(one, two)


def test_an_interrupted_recipe_goes_on_and_ends_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = TINY.but(members=2, pretrain={"epochs": 2, "batch_size": 40})
    whole = run_recipe(recipe, **QUIET)
    calls = []

    def stop(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(converted_stage, "_convert", stop)
        with pytest.raises(KeyboardInterrupt):
            run_recipe(recipe, tmp_path / "run", **QUIET)
    assert calls
    again = run_recipe(recipe, tmp_path / "run", **QUIET)
    for name, value in whole.net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], value)


def test_one_folder_one_recipe(tmp_path: pathlib.Path) -> None:
    run_recipe(TINY, tmp_path / "run", **QUIET)
    with pytest.raises(ValueError, match="holds a run of another recipe: seed was 0, is now 1"):
        run_recipe(TINY.but(seed=1), tmp_path / "run", **QUIET)


def test_a_folder_without_a_finished_run(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        load_run(tmp_path)


def test_regression_keeps_its_noise(tmp_path: pathlib.Path) -> None:
    x = torch.linspace(-1, 1, 80)[:, None]
    lines = ["a,y", *(f"{float(v):.4f},{100 + 50 * float(v):.3f}" for v in x[:, 0])]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    recipe = TINY.but(data={"csv": str(tmp_path / "table.csv"), "target": "y"}, schedule={"epochs": 2})
    outcome = run_recipe(recipe, tmp_path / "run", **QUIET)
    again = load_run(tmp_path / "run")
    assert again.likelihood.sd().item() == pytest.approx(outcome.likelihood.sd().item(), rel=1e-5)
    assert again.target == outcome.target
    assert again.preparation([{"a": 0.5}]).shape == (1, 1)


PRETRAINED = TINY.but(pretrain={"epochs": 1, "batch_size": 40})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": {"inference": "inducing", "inducing_row": 4}}, "unknown option 'inducing_row'"),
        ({"method": {"inference": {"nothing*": "ffg"}}}, "nothing"),
        ({"kl_weights": (1.0,), "data": {"name": "digits", "first": 100}}, "needs validation data"),
        ({"schedule": {"patience": 2}, "data": {"name": "digits", "first": 100}}, "patience needs validation data"),
    ],
)
def test_a_mistake_in_a_later_stage_shows_before_the_first(
    change: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        run_recipe(PRETRAINED.but(**change), tmp_path / "run", **QUIET)
    assert not (tmp_path / "run" / "pretrain").exists()


def test_what_comes_after_pretraining_may_change_until_it_has_begun(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    other = PRETRAINED.but(method={**PRETRAINED.method, "inducing_rows": 5})
    with monkeypatch.context() as patch:
        patch.setattr(converted_stage, "_convert", stop)
        with pytest.raises(KeyboardInterrupt):
            run_recipe(PRETRAINED, tmp_path / "run", **QUIET)
    whole, again = run_recipe(other, **QUIET), run_recipe(other, tmp_path / "run", **QUIET)
    for name, value in whole.net.state_dict().items():
        assert torch.equal(again.net.state_dict()[name], value)
    with pytest.raises(ValueError, match=r"method.inducing_rows was 5, is now 4"):
        run_recipe(PRETRAINED, tmp_path / "run", **QUIET)


def test_a_diverging_candidate_is_left_out() -> None:
    recipe = TINY.but(kl_weights=(1e30, 1.0), schedule={"optimiser": "sgd", "lr": 1e-3})
    with pytest.warns(UserWarning, match=r"KL weight 1e\+30 is left out, its training diverged"):
        outcome = run_recipe(recipe, **QUIET)
    assert list(outcome.candidates or {}) == ["1.0"]


def test_members_trained_alone_get_the_noise_of_their_mixture(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "cross_fits", lambda likelihood, data: False)
    x = torch.linspace(-1, 1, 60).tolist()
    (tmp_path / "table.csv").write_text("\n".join(["a,y", *(f"{v:.4f},{50 * v:.3f}" for v in x)]))
    data = {"csv": str(tmp_path / "table.csv"), "target": "y"}
    recipe = TINY.but(data=data, method={"inference": "deterministic"}, members=2, schedule={"epochs": 3, "lr": 0.05})
    outcome = run_recipe(recipe, tmp_path / "run", **QUIET)
    parts = [load_run(tmp_path / "run" / "train" / f"member{i}", net=member_like(outcome)) for i in range(2)]
    inputs, y = outcome.data().train.tensors()
    with torch.no_grad():
        residuals = torch.stack([part.network(inputs) - y for part in parts])
    for part, own in zip(parts, residuals, strict=True):
        assert part.likelihood.sd().item() == pytest.approx(likeliest_sd(own[None], part.likelihood.df()), rel=5e-3)
    assert outcome.likelihood.sd().item() == pytest.approx(likeliest_sd(residuals, outcome.likelihood.df()), rel=5e-3)
    assert outcome.history is not None
    assert outcome.history.noise is not None
    assert outcome.history.noise["data"] == "training"


def likeliest_sd(residuals: torch.Tensor, df: float) -> float:
    """By trying many: the sd of noise with these tails under which residuals (K, N, 1) of K draws are likeliest."""
    p, c = (torch.tensor(part).reshape(-1, 1, 1, 1) for part in tails(df))
    tried = torch.logspace(-2, 1, 2001)
    scores = [
        (torch.distributions.Normal(0, sd * c).log_prob(residuals) + p.log()).logsumexp((0, 1)).sum() for sd in tried
    ]
    return float(tried[torch.stack(scores).argmax()])


def member_like(outcome: Any) -> torch.nn.Module:
    return build.build_net(outcome.recipe.net, outcome.in_shape, outcome.out_features)


def test_only_the_first_process_writes_the_files_of_a_recipe(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not execute._first_process()
    execute._claimed(RunFolder(tmp_path / "run"), TINY)
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("LOCAL_RANK", "0")
    execute._claimed(RunFolder(tmp_path / "run"), TINY)
    assert (tmp_path / "run" / "recipe.json").exists()


def test_our_presets_have_the_registrys_defaults() -> None:
    """One set of defaults: a preset names its method, and says no more than the size of U."""
    for name, method in (
        ("ffg", "ffg-w"),
        ("from-trained", "ffg-u"),
        ("ensemble-u", "ensemble-u"),
        ("point-u", "point-u"),
    ):
        for kind, inputs in (("", 54_000), ("digits-", 1_167)):
            recipe, usual = Recipe.preset(f"ours/{kind}{name}"), bnn.methods()[method]
            assert recipe.method["inference"] == method
            assert set(recipe.method) <= {"inference", "inducing_rows", "inducing_cols"}
            assert (recipe.schedule.kl_weight, recipe.schedule.samples) == (usual.kl_weight, usual.members)
            assert recipe.schedule.lr == usual.rate(inputs)
    scratch = Recipe.preset("ours/digits-from-scratch").schedule
    assert scratch.lr == bnn.methods()["ffg-u"].scratch_lr


def test_presets_of_the_paper_are_named_after_methods() -> None:
    names = [name.split("-", 2)[2] for name in presets() if name.startswith("paper/cifar")]
    assert set(names) <= set(bnn.methods())
    assert presets()["paper/cifar10-resnet18-ffg-u"].about.startswith(bnn.methods()["ffg-u"].title)
