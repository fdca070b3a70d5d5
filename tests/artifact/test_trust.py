"""Machine code runs only where somebody vouches for it whom the user trusts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.artifact.ed25519 import is_signed, public_key, sign
from weft.artifact.manifest import GRAPH, MANIFEST, SIGNATURES
from weft.artifact.opened import open_artifact
from weft.artifact.read import Model
from weft.artifact.recompile import recompiled
from weft.artifact.trust import KEY, LIST
from weft.artifact.write import Request, write_artifact
from weft.backends.cpu.native_program import EXPORTS
from weft.backends.cpu.objects.link_shared import link_shared
from weft.backends.cpu.target import compile_object, host_target
from weft.errors import ArtifactTrustError, CorruptArtifactError
from weft.testing.hostile_artifacts import archive, layer_inputs, layer_source, members_of, resealed


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("42" * 32)
    path.chmod(0o600)
    return path


def evil_code() -> bytes:
    """A shared object with the right functions, of which the one that is called says 666."""
    bodies = {"weft_call": "ret i64 666", "weft_arena": "ret i64 0", "weft_shapes": "ret void"}
    bodies["weft_pool_reset"] = "ret void"
    text = f'target triple = "{host_target().triple}"\n' + "\n".join(
        f"define {body.split()[1]} @{name}() {{\n  {body}\n}}" for name, body in bodies.items()
    )
    return link_shared(compile_object(text, host_target(), jit=False), EXPORTS)


def with_evil_code(path: Path) -> Path:
    members = members_of(path.read_bytes())
    forged = path.with_name("forged.weft")
    forged.write_bytes(resealed({**members, "code/host.so": evil_code()}))
    return forged


def test_altered_machine_code_never_runs_unless_the_caller_says_so(layer: Path) -> None:
    wanted = weft.load(layer)(layer_inputs())[0]
    forged = with_evil_code(layer)
    model = weft.load(forged)
    assert model.how == "compiled anew"
    np.testing.assert_array_equal(model(layer_inputs())[0], wanted)
    with pytest.raises(weft.WeftError, match="666"):  # it would have run, had it been trusted
        weft.load(forged, trust=True)(layer_inputs())


KERNEL = """
  %4 = "graph.launch"(%3) ({
    "tile.kernel"() ({
    ^bb0(%o: !tile.ptr<f32>):
      %6 = "tile.constant"() {value = 0 : i64} : () -> !tile.tile<[1 : i64], i64>
      %7 = "tile.constant"() {value = 1.0 : f64} : () -> !tile.tile<[1 : i64], f32>
      "tile.scatter"(%7, %o, %6) {kind = "assign", unordered} :
        (!tile.tile<[1 : i64], f32>, !tile.ptr<f32>, !tile.tile<[1 : i64], i64>) -> ()
      "tile.return"() : () -> ()
    }) {sym_name = "fill", grid = #tile.sizes<["1"]>, symbols = []} : () -> ()
  }) {arguments = [["result", 0 : i64]], tied = [0 : i64], grid = [1 : i64, 1 : i64, 1 : i64]} : (Y) -> Y
  "graph.return"(%4)"""


def test_kernels_that_somebody_wrote_are_compiled_only_if_they_are_trusted(layer: Path) -> None:
    wanted = weft.load(layer)(layer_inputs())[0]
    members = members_of(layer.read_bytes())
    kernel = KERNEL.replace("Y", 'tensor<?x3xf32, #graph.sizes<["s0", "3"]>>')
    graph = members[GRAPH].decode().replace('"graph.return"(%3)', kernel)
    layer.write_bytes(resealed({**members, GRAPH: graph.encode()}))
    with pytest.raises(ArtifactTrustError, match="kernel that somebody wrote"):
        weft.load(layer)
    model = Model(open_artifact(layer), recompiled(open_artifact(layer), "cpu", 1, trusted=True), "compiled anew", 1)
    found = model(layer_inputs())[0]
    assert found.flat[0] == 1
    np.testing.assert_allclose(found.flat[1:], wanted.flat[1:], rtol=1e-6)


def test_code_with_another_digest_is_refused(layer: Path) -> None:
    members = members_of(layer.read_bytes())
    layer.write_bytes(archive({**members, "code/host.so": evil_code()}))
    for trust in (False, True):
        with pytest.raises(CorruptArtifactError, match=r"code/host\.so is not what it was"):
            weft.load(layer, trust=trust)


def test_what_another_user_made_is_compiled_anew(layer: Path, own_keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert weft.load(layer).how == "machine code for host"
    monkeypatch.setenv("WEFT_CONFIG_DIR", str(own_keys.with_name("another")))
    assert weft.load(layer).how == "compiled anew"
    assert weft.load(layer, trust=True).how == "machine code for host"


def test_what_another_machine_made_is_compiled_anew(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.artifact.trust._machine", lambda: b"another")
    assert weft.load(layer).how == "compiled anew"


def test_a_key_that_others_can_read_is_no_key(layer: Path, own_keys: Path) -> None:
    assert (own_keys / KEY).stat().st_mode & 0o777 == 0o600
    (own_keys / KEY).chmod(0o644)
    assert weft.load(layer).how == "compiled anew"


def test_without_a_home_nobody_is_trusted(layer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_CONFIG_DIR", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user whom the system does not know
    assert open_artifact(layer).vouched == ""
    write_artifact(tmp_path / "own.weft", layer_source(), Request(("x86-64-v2",)))
    assert open_artifact(tmp_path / "own.weft").signatures.machine == ""


def test_a_list_of_keys_that_is_no_text_lists_none(layer: Path, own_keys: Path) -> None:
    (own_keys / KEY).unlink()
    (own_keys / LIST).write_bytes(b"\xff\xfe")
    assert open_artifact(layer).vouched == ""


def test_a_manifest_that_was_changed_has_no_seal(layer: Path) -> None:
    members = members_of(layer.read_bytes())
    manifest = json.loads(members[MANIFEST])
    manifest["license"] = "mine"
    layer.write_bytes(archive({**members, MANIFEST: json.dumps(manifest, indent=1).encode()}))
    assert weft.load(layer).how == "compiled anew"


def test_a_signature_by_a_listed_key_is_trusted(
    tmp_path: Path, key: Path, own_keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "signed.weft"
    write_artifact(path, layer_source(), Request(sign=key))
    monkeypatch.setattr("weft.artifact.trust._machine", lambda: b"another")
    assert weft.load(path).how == "compiled anew"
    public = public_key(bytes.fromhex("42" * 32)).hex()
    (own_keys / LIST).write_text(f"# whom I trust\n{public} the build machine\n")
    assert weft.load(path).how == "machine code for host"
    (own_keys / LIST).chmod(0o666)
    assert weft.load(path).how == "compiled anew"
    (own_keys / LIST).chmod(0o600)
    members = members_of(path.read_bytes())
    path.write_bytes(resealed(members))  # other bytes of the same meaning: the signature is not theirs
    with pytest.raises(ArtifactTrustError, match="and it is not"):
        weft.load(path)


def test_keys_to_sign_with_are_secret(tmp_path: Path, key: Path) -> None:
    key.chmod(0o644)
    with pytest.raises(ArtifactTrustError, match="its owner alone"):
        write_artifact(tmp_path / "m.weft", layer_source(), Request(sign=key))
    with pytest.raises(ArtifactTrustError, match="is no key"):
        write_artifact(tmp_path / "m.weft", layer_source(), Request(sign=tmp_path / "none"))


@pytest.mark.parametrize("text", [b"{}", b'{"machine": 1, "key": "", "signature": ""}', b"[]", b"\xff"])
def test_signatures_that_are_none_are_refused(layer: Path, text: bytes) -> None:
    layer.write_bytes(archive({**members_of(layer.read_bytes()), SIGNATURES: text}))
    with pytest.raises(CorruptArtifactError):
        weft.load(layer)


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [  # RFC 8032, 7.1
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
            "4a7c15e9716ed28dc027beceea1ec40a",
        ),
    ],
)
def test_ed25519_is_that_of_the_standard(seed: str, public: str, message: str, signature: str) -> None:
    secret, text = bytes.fromhex(seed), bytes.fromhex(message)
    assert public_key(secret).hex() == public
    assert sign(secret, text).hex() == signature
    assert is_signed(bytes.fromhex(public), text, bytes.fromhex(signature))
    for place in (0, 31, 32, 63):
        wrong = bytearray(bytes.fromhex(signature))
        wrong[place] ^= 1
        assert not is_signed(bytes.fromhex(public), text, bytes(wrong))
    assert not is_signed(bytes.fromhex(public), text + b"x", bytes.fromhex(signature))
    assert not is_signed(b"\xff" * 32, text, bytes.fromhex(signature))
