"""The files of deploy/ are well formed, hardened, and refer to files that exist.

Tools that are installed check them too; `make test-deploy` installs some."""

import configparser
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from deploy_files import COMPOSE, DEPLOY, DOCKERFILE, MANIFESTS, ROOT, UNITS, containers, documents

from tardigrad import __version__
from tardigrad.experiments.config.reading import load_config

COMMON = DEPLOY / "compose" / "common.yaml"
SETS = [DEPLOY / "kubernetes" / name / "statefulset.yaml" for name in ("server", "helper")]


def checked(words, **options):
    """Run a program that must succeed, and return what it wrote."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needs(program):
    return pytest.mark.skipif(shutil.which(program, path=PATH) is None, reason=f"needs {program}")


PATH = os.pathsep.join([str(os.path.dirname(sys.executable)), os.environ.get("PATH", "")])  # noqa: PTH120


def test_config_is_valid():
    assert load_config(DEPLOY / "config" / "run.toml", ())


# The image


def test_image_is_pinned_as_the_constraints_are():
    text = DOCKERFILE.read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.M)
    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", bases[0])
    (torch,) = re.findall(r'"torch==([\d.]+)\+cpu"', text)
    assert f"\ntorch=={torch}\n" in (ROOT / "constraints.txt").read_text()
    assert "pip install -c constraints.txt" in text
    assert f"-t tardigrad:{__version__} " in text


def test_image_is_not_run_as_root_and_holds_no_secret():
    final = DOCKERFILE.read_text().split("\nFROM ")[2]
    instructions = re.findall(r"^([A-Z]+) (.*)$", final.replace("\\\n", " "), re.M)
    assert [words for name, words in instructions if name == "USER"] == ["10001:10001"]
    assert [words.split()[-2:] for name, words in instructions if name == "COPY"] == [
        ["/opt/tardigrad", "/opt/tardigrad"],
        ["deploy/docker/health.py", "/opt/tardigrad/health.py"],
    ]
    assert ("VOLUME", '["/data", "/keys"]') in instructions
    names = [name for name, _ in instructions]
    assert "ADD" not in names
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_builder_gets_only_what_it_copies():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {
        source
        for words in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.*) \S+$", DOCKERFILE.read_text(), re.M)
        for source in words.split()
    }
    assert allowed == copied
    assert all((ROOT / path).exists() for path in allowed)
    assert "\n*\n" in (ROOT / ".dockerignore").read_text()


@needs("hadolint")
def test_hadolint_accepts():
    checked([shutil.which("hadolint", path=PATH), DOCKERFILE])


# Compose


def test_mounted_and_extended_files_exist():
    for file in COMPOSE:
        services = documents(file)[0]["services"]
        volumes = documents(file)[0]["volumes"]
        for service in services.values():
            if "extends" in service:
                assert (
                    service["extends"]["service"]
                    in documents(file.parent / service["extends"]["file"])[0]["services"]
                )
            for mount in service.get("volumes", ()):
                source = mount.split(":")[0]
                assert (file.parent / source).exists() if source.startswith(".") else source in volumes


def test_containers_of_compose_have_few_rights():
    common = documents(COMMON)[0]["services"]["tardigrad"]
    assert common["read_only"]
    assert common["cap_drop"] == ["ALL"]
    assert common["security_opt"] == ["no-new-privileges:true"]
    assert common["image"] == f"tardigrad:{__version__}"
    for file in COMPOSE:
        for name, service in documents(file)[0]["services"].items():
            own = "extends" in service or "image" not in service
            assert own or service["cap_drop"] == ["ALL"]
            assert own or re.search(r":v?\d+\.\d+\.\d+$", service["image"])
            for port in service.get("ports", ()):  # only clients come from elsewhere
                assert port.startswith("127.0.0.1:") or name == "server"


def test_only_the_server_writes_to_the_runs_and_only_operators_to_the_keys():
    mounts = {
        (name, mount)
        for file in COMPOSE
        for name, service in documents(file)[0]["services"].items()
        for mount in service.get("volumes", ())
        if mount.split(":")[0] in ("runs", "keys", "helper", "helper-keys")
    }
    assert mounts == {
        ("server", "runs:/data"), ("server", "keys:/keys:ro"), ("watch", "runs:/data:ro"),
        ("keys", "keys:/keys"), ("helper", "helper:/data"), ("helper", "helper-keys:/keys:ro"),
        ("helper-keys", "helper-keys:/keys"),
    }  # fmt: skip


def test_both_compose_files_start_the_same_server():
    plain, secure = (documents(file)[0]["services"]["server"]["command"] for file in COMPOSE)
    assert secure[: len(plain)] == plain
    assert all(word.startswith("--set=secure.") for word in secure[len(plain) :])


@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="needs check-jsonschema")
@pytest.mark.parametrize("file", [COMMON, *COMPOSE], ids=lambda file: file.name)
def test_compose_files_fit_the_schema(file):
    checked([sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file])


# Kubernetes


@pytest.mark.parametrize("file", SETS, ids=lambda file: file.parent.name)
def test_pods_have_few_rights_and_one_replica(file):
    (document,) = documents(file)
    spec, pod = document["spec"], document["spec"]["template"]["spec"]
    assert spec["replicas"] == 1
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    names = {
        volume["name"]
        for volume in [*pod["volumes"], *(one["metadata"] for one in spec["volumeClaimTemplates"])]
    }
    for claim in spec["volumeClaimTemplates"]:
        assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    for container in containers(file):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"requests", "limits"} == set(container["resources"])
        assert "livenessProbe" in container
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


@pytest.mark.parametrize("folder", [file.parent for file in SETS], ids=lambda folder: folder.name)
def test_manifests_refer_to_each_other(folder):
    kustomization = documents(folder / "kustomization.yaml")[0]
    resources = set(kustomization["resources"])
    assert {file.name for file in MANIFESTS if file.parent == folder} == {
        name for name in resources if name.endswith(".yaml")
    } | {"kustomization.yaml"}
    assert all((folder / name).exists() for name in resources)
    assert kustomization["images"][0]["newTag"] == __version__
    found = [document for file in folder.glob("*.yaml") for document in documents(file)]
    (workload,) = (one for one in found if one["kind"] == "StatefulSet")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    ports = {
        port["name"]: port["containerPort"]
        for one in containers(folder / "statefulset.yaml")
        for port in one.get("ports", ())
    }
    services = [one for one in found if one["kind"] == "Service"]
    assert workload["spec"]["serviceName"] in {one["metadata"]["name"] for one in services}
    for service in services:
        assert service["spec"]["selector"] == labels
        assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    (policy,) = (one for one in found if one["kind"] == "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == set(ports)


@needs("kubectl")
@pytest.mark.skipif(find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate")
@pytest.mark.parametrize("name", ["server", "helper"])
def test_built_manifests_fit_the_schema(name, tmp_path):
    built = tmp_path / "built.yaml"
    built.write_text(checked(["kubectl", "kustomize", DEPLOY / "kubernetes" / name]))
    checked([sys.executable, "-m", "kubernetes_validate", "--strict", built])


# systemd


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_units_are_restarted_and_installed(file):
    unit = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    unit.optionxform = str
    unit.read(file)
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert "MemoryMax" in unit["Service"]
    assert file.name.startswith("tardigrad-")  # so that tardigrad-.service.d applies


@needs("systemd-analyze")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_systemd_accepts_the_unit_and_finds_little_exposed(file, tmp_path):
    shutil.copytree(DEPLOY / "systemd", tmp_path, dirs_exist_ok=True)
    name = file.name.replace("@.", "@ann.")
    copy = tmp_path / file.name
    copy.write_text(file.read_text().replace("/opt/tardigrad/bin/tardigrad", "/bin/true"))
    environment = os.environ | {"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / name],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "tardigrad" in line] == []
    words = ["systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", tmp_path / name]
    assert "Overall exposure level" in checked(words, env=environment)


@needs("systemd-sysusers")
def test_systemd_makes_the_user():
    file = DEPLOY / "systemd" / "tardigrad-sysusers.conf"
    done = subprocess.run(["systemd-sysusers", "--dry-run", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known = "tardigrad" in {user.pw_name for user in pwd.getpwall()}
    assert ("Creating user 'tardigrad'" in done.stderr) is not known


def test_the_board_is_the_home_of_grafana():
    services = documents(COMPOSE[0])[0]["services"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    mounted = dict(mount.split(":")[1::-1] for mount in services["grafana"]["volumes"])
    assert json.loads((DEPLOY / "compose" / mounted[home]).read_text())["title"] == "Tardigrad"
    path = documents(DEPLOY / "monitoring" / "grafana" / "boards.yml")[0]["providers"][0]["options"]["path"]
    assert home.startswith(f"{path}/")
