"""Settings and hyper-parameters of runs: presets, CANDLE's config files and names, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.checkpoint.timing import When
from farandole.errors import SettingsError
from farandole.train.checkpoints import kept, parsed_when
from farandole.train.settings import RunSettings
from farandole.workloads import find_workload
from farandole.workloads.config_file import read_config_file

NAMES = ("nt3", "p1b1", "p1b2", "p1b3")
PRESETS = ("demo", "test", "paper")

NT3_FILE = """\
[Global_Params]
data_url = 'http://example.org/normal-tumor/'
model_name = 'nt3'
train_data = 'nt_train2.csv'
conv = [64, 20, 1, 32, 10, 1]
dense = [200,20]
optimizer = 'sgd'
epochs = 400
batch_size = 30
learning_rate = 0.001
drop = 0.2
pool = [1, 10]
add_noise = False
save_path = 'saved'
[Monitor_Params]
solr_root = ''
timeout = 3600
"""


def flat(**given: Any) -> RunSettings:
    return RunSettings.from_flat({"benchmark": "nt3", **given})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "nt3_default_model.txt"
    path.write_text(NT3_FILE)
    return path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", PRESETS)
def test_settings_survive_as_plain_values(name: str, preset: str) -> None:
    settings = RunSettings.from_flat({"benchmark": name, "preset": preset, "make_data": True})
    assert RunSettings.from_flat(settings.as_flat()) == settings
    assert settings.parameters == find_workload(name).parameters(**find_workload(name).presets[preset])


def test_a_file_overrides_the_preset_and_what_is_typed_overrides_the_file(file: Path) -> None:
    settings = flat(config_file=str(file), batch_size=10)
    found = settings.parameters.as_dict()
    assert found["conv"] == [64, 20, 1, 32, 10, 1] and found["epochs"] == 400 and found["batch_size"] == 10
    assert found["dropout"] == 0.2, "by its older name"
    assert found["timeout"] == 3600, "of another section"
    assert settings.output_dir == Path("saved")


EVERY_FILE = {"batch_size": 100, "feature_subsample": 0, "rng_seed": 2017, "initialization": "glorot_uniform", "epochs": 1}
PUBLISHED: dict[str, dict[str, Any]] = {
    "nt3": {
        "label_noise": 0.3, "noise_correlated": False, "feature_col": 50, "feature_threshold": 0.01, "std_dev": 0.5,
        "noise_gaussian": False, "classes": 2, "metrics": "accuracy", "restart": True, "ckpt_checksum": False,
    },
    "p1b1": {
        "url_p1b1": "http://", "file_train": "P1B1.dev.train.csv", "file_test": "P1B1.dev.test.csv", "base_lr": None,
        "learning_rate": None, "noise_factor": 0, "batch_normalization": False, "alpha_dropout": False, "save": "saved",
    },
    "p1b2": {"one_hot_dtrep": True, "penalty": 0.00001, "test_data": "P1B2.test.csv", "drop": 0.0, "validation_split": 0.1},
    "p1b3": {
        "category_cutoffs": [0.0], "test_cell_split": 0.15, "cell_features": ["expression"], "pool": 10,
        "cell_noise_sigma": 0.0, "subsample": "naive_balancing", "min_logconc": -5.0, "conv": [10, 10, 5, 10, 10, 5],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_in_the_files_that_candle_publishes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.txt"
    lines = [f"{key} = {value!r}" for key, value in (EVERY_FILE | PUBLISHED[name]).items()]
    path.write_text("\n".join(["[Global_Params]", *lines]))
    assert RunSettings.from_flat({"benchmark": name, "config_file": str(path)}).parameters.batch_size == 100


OF_THE_TRAINING = {"metrics": "mse", "data_type": "f64", "category_cutoffs": [0.0, 0.5], "gpus": [0, 1], "data_url": "http://"}


def test_what_changes_candles_training_and_not_ours_is_known(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("[Global_Params]\nmetrics = 'mae'\ndata_type = 'f64'\nverbose = True\n")
    settings = flat(config_file=str(path), **{name: OF_THE_TRAINING[name] for name in OF_THE_TRAINING if name != "data_type"})
    assert settings.ignored == OF_THE_TRAINING
    assert RunSettings.from_flat(settings.as_flat()) == settings, "as ranks get them"
    assert flat(metrics="accuracy", classes=36, data_type="f32", category_cutoffs=[0.0], gpus=[], data_url=None).ignored == {}
    assert flat(data_type=np.float32).ignored == {} and flat(data_type=np.float64).ignored == {"data_type": "float64"}


def test_a_preset_in_a_file_is_as_good_as_one_that_is_typed(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("[Global_Params]\npreset = 'test'\n")
    assert flat(config_file=str(path)) == flat(preset="test")
    assert flat(config_file=str(path), preset="demo") == flat(preset="demo")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"benchmark": "p1b1", "model": "vae", "loss": "mae"}, r"^loss='mae': vae has .* binary_crossentropy.* Leave it out, or use model=ae"),
        ({"benchmark": "p1b3", "locally_connected": True}, "^locally_connected=True: there are no convolutions. .* conv="),
        ({"benchmark": "p1b3", "pool": 5}, r"^pool=\[5\]: there are no convolutions. .* conv="),
    ],
)
def test_options_that_would_do_nothing_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        RunSettings.from_flat(given)
    RunSettings.from_flat({"benchmark": "p1b1", "model": "cvae", "loss": "mse"})  # as in CANDLE's own files


def test_the_rate_of_candles_warm_up_is_not_that_of_training() -> None:
    given, plain = (RunSettings.from_flat({"benchmark": "p1b1", **more}) for more in ({"base_lr": 0.5}, {}))
    assert given == plain


def test_p1b3_is_judged_as_by_candles_own_files() -> None:
    found = RunSettings.from_flat({"benchmark": "p1b3", "preset": "paper", "make_data": True})
    assert found.parameters.as_dict()["test_cell_split"] == PUBLISHED["p1b3"]["test_cell_split"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("epochs = __import__('os').getpid()", "no literal"),
        ("epochs = 4 * 100", "no literal"),
        ("epochs = {[1]: 2}", "no literal"),
        ("ckpt_save_weights_only = True", "not there"),
        ("epochz = 4", "unknown name 'epochz'; known: activation, "),
        ("add_noise = True", "not there"),
        ("train_data = 'mine.csv'", "train_data='mine.csv': nt3 reads nt_train2.csv, nt_test2.csv. .*--data-dir"),
        ("epochs = 'many'", "expected a whole number"),
        ("epochs = True", "expected a whole number"),
        ("shuffle = 'yes'", "expected True or False"),
        ("optimizer = 'sdg'", "Use one of sgd, rmsprop"),
        ("dropout = 1.5", "below 1"),
        ("pool = [1]", "expected 2 widths"),
        ("scaling = 'minabs'", "Use one of maxabs, minmax, std, none"),
        ("no equals sign", "no config file"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "model.txt"
    path.write_text(f"[Global_Params]\n{line}\n")
    with pytest.raises(SettingsError, match="(?s)" + told.replace("[", r"\[")):
        flat(config_file=str(path))


def test_a_section_of_defaults_is_one_like_the_others(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("[DEFAULT]\nepochs = 7\nckpt_keep_mode = None\nckpt_save_weights_only = False\n")
    assert flat(config_file=str(path)).parameters.epochs == 7


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.txt"):
        read_config_file(tmp_path / "absent.txt")


@pytest.mark.parametrize(("preset", "dense"), [("paper", (1000, 500, 100, 50)), ("test", (128, 64))])
def test_convolutions_replace_p1b3s_dense_layers_unless_both_are_asked_for(preset: str, dense: tuple[int, ...]) -> None:
    def of(**given: Any) -> Any:
        return RunSettings.from_flat(
            {"benchmark": "p1b3", "preset": preset, "make_data": True, **given}
        ).parameters.dense

    assert of() == of(conv=[]) == dense
    assert of(conv=[10, 10, 5], pool=10) == ()
    assert of(conv=[10, 10, 5], pool=10, dense=[7]) == (7,)
    with pytest.raises(SettingsError, match=r"pool=\[0\]: expected one width from 1 on"):
        of(conv=[10, 10, 5], pool=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_split_goes_by_the_name_that_was_typed(name: str) -> None:
    with pytest.raises(SettingsError, match=r"^val_split=1\.5: expected a fraction"):
        RunSettings.from_flat({"benchmark": name, "validation_split": 1.5})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("option", "value", "known"), [("activation", "rlu", "relu"), ("out_activation", "rlu", "softmax"), ("optimizer", "sdg", "sgd")]
)
def test_an_unknown_choice_is_refused_before_keras_is_loaded(name: str, option: str, value: str, known: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{option}='{value}' is unknown\. Use one of .*{known}"):
        RunSettings.from_flat({"benchmark": name, option: value})


def test_the_papers_size_needs_data() -> None:
    with pytest.raises(SettingsError, match=r"--data-dir DIR .* or --make-data"):
        flat(preset="paper")


def test_unknown_names_are_answered_with_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"unknown name 'reg_l2'; known: .*dropout"):
        flat(reg_l2=0.1)
    with pytest.raises(SettingsError, match="Use one of cnn, gpt2, nt3, p1b1, p1b2, p1b3"):
        RunSettings.from_flat({"benchmark": "nt4"})
    with pytest.raises(SettingsError, match="Use one of epochs, steps"):
        flat(parallel="both")


@pytest.mark.parametrize("given", [{"ckpt_save_interval": 0}, {"checkpoint_every": "0"}])
def test_candles_interval_of_no_checkpoints_is_none_given(given: dict[str, Any]) -> None:
    assert flat(**given).checkpoint_every == ""
    assert flat(**given, ckpt_keep_limit=2).checkpoint_every == "1", "as without it"


def test_an_older_name_of_the_last_activation() -> None:
    assert flat(out_act="sigmoid").parameters.out_activation == "sigmoid"


CHECKPOINTS = """\
[Global_Params]
ckpt_restart_mode = 'required'
ckpt_checksum = True
ckpt_directory = 'saved'
ckpt_save_best = True
ckpt_save_interval = 5
ckpt_keep_mode = 'linear'
ckpt_keep_limit = 7
"""


def test_checkpoints_under_candles_names(tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(CHECKPOINTS)
    settings = flat(config_file=str(path))
    assert (settings.resume, settings.checkpoint_every, settings.checkpoint_keep) == ("required", "5", 7)
    assert (settings.checkpoint_best, settings.checkpoint_folder) == ("val_loss", Path("saved"))
    assert RunSettings.from_flat(settings.as_flat()) == settings
    assert flat(ckpt_save_best=False, ckpt_save_best_metric="val_loss").checkpoint_best == ""
    with pytest.raises(SettingsError, match="ckpt_keep_mode='exponential' is a feature of CANDLE that is not there"):
        flat(ckpt_keep_mode="exponential")


def test_checkpoints_are_made_where_any_of_their_settings_is_given(tmp_path: Path) -> None:
    assert flat(output_dir="here").checkpoint_folder is None
    assert flat(output_dir="here", checkpoint_best="val_loss").checkpoint_folder == Path("here/checkpoints")
    assert flat(checkpoint_dir="there").checkpoint_every == "1"
    path = tmp_path / "model.txt"
    for line, every in (("ckpt_keep_limit = 2", "1"), ("ckpt_restart_mode = 'auto'", "1"), ("ckpt_restart_mode = 'off'", "")):
        path.write_text(f"[Global_Params]\n{line}\n")
        settings = flat(config_file=str(path))
        assert settings.checkpoint_every == every
        assert RunSettings.from_flat(settings.as_flat()) == settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", {"epochs": 5}),
        ("2 epochs", {"epochs": 2}),
        ("1epoch", {"epochs": 1}),
        ("100steps", {"steps": 400}),
        ("90s", {"seconds": 90}),
        ("10m", {"seconds": 600}),
        ("auto", {"failures_s": 86400}),
        ("auto:6h", {"failures_s": 21600}),
    ],
)
def test_how_often(text: str, expected: dict[str, float]) -> None:
    assert parsed_when(text, passes=4) == When(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["0", "often", "5 days", "-1", "auto:1", "1.5", "autos"])
def test_how_often_not(text: str) -> None:
    with pytest.raises(SettingsError):
        parsed_when(text)


def test_the_best_is_the_lowest_loss_and_the_highest_accuracy() -> None:
    assert kept(3, "val_loss").mode == "min" and kept(3, "val_accuracy").mode == kept(3, "val_r2").mode == "max"
