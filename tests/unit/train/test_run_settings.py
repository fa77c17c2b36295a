"""Settings and hyper-parameters of runs: presets, CANDLE's config files and names, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from farandole.benchmarks import NAMES, benchmark
from farandole.benchmarks.config_file import read_config_file
from farandole.errors import SettingsError
from farandole.train.settings import PRESETS, RunSettings

NT3_FILE = """\
[Global_Params]
data_url = 'http://example.org/normal-tumor/'
model_name = 'nt3'
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
    assert settings.parameters == benchmark(name).parameters(**benchmark(name).presets[preset])


def test_a_file_overrides_the_preset_and_what_is_typed_overrides_the_file(file: Path) -> None:
    settings = flat(config_file=str(file), batch_size=10)
    found = settings.parameters.as_dict()
    assert found["conv"] == [64, 20, 1, 32, 10, 1] and found["epochs"] == 400 and found["batch_size"] == 10
    assert found["dropout"] == 0.2, "by its older name"
    assert found["timeout"] == 3600, "of another section"
    assert settings.output_dir == Path("saved")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("epochs = __import__('os').getpid()", "no literal"),
        ("epochs = 4 * 100", "no literal"),
        ("epochz = 4", "unknown name 'epochz'; known: activation, "),
        ("add_noise = True", "not there"),
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


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.txt"):
        read_config_file(tmp_path / "absent.txt", ())


def test_convolutions_replace_p1b3s_dense_layers_unless_both_are_asked_for() -> None:
    def of(**given: Any) -> Any:
        return RunSettings.from_flat(
            {"benchmark": "p1b3", "preset": "paper", "make_data": True, **given}
        ).parameters.dense

    assert of() == (1000, 500, 100, 50)
    assert of(conv=[10, 10, 5], pool=10) == ()
    assert of(conv=[10, 10, 5], pool=10, dense=[7]) == (7,)


def test_the_papers_size_needs_data() -> None:
    with pytest.raises(SettingsError, match=r"--data-dir DIR .* or --make-data"):
        flat(preset="paper")


def test_unknown_names_are_answered_with_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"unknown name 'reg_l2'; known: .*dropout"):
        flat(reg_l2=0.1)
    with pytest.raises(SettingsError, match="Use one of nt3, p1b1, p1b2, p1b3"):
        RunSettings.from_flat({"benchmark": "nt4"})
    with pytest.raises(SettingsError, match="Use one of epochs, steps"):
        flat(parallel="both")
