"""deploy/README.md is walked as it stands, on machines on which its paths and addresses are free.

Left out are the lines that install packages and those to systemd, which does not run there: what its units start
is started by their own lines.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import wait_for
from tests.integration.lab import BIN, ROOT, Lab, can_make_namespaces
from tests.support.etcd import require_etcd
from tests.support.postgres import require_postgres

README = (ROOT / "deploy/README.md").read_text()
CERTIFICATES = (ROOT / "docs/control-planes.md").read_text().partition("\n## Certificates\n")[2]
CONTROLPLANE, AGENT, ETCD = "nsml-controlplane.service", "nsml-agent.service", "nsml-etcd.service"

pytestmark = [
    pytest.mark.skipif(not can_make_namespaces(), reason="root makes namespaces here alone"),
]

_LEFT_OUT = re.compile(r"^(apt-get|python3 -m venv|/opt/nsml/bin/pip|systemctl|install -m 644) ")
_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def block(heading: str, first: str) -> str:
    """The block of the README under a heading that begins with these words; without what is left out."""
    part = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = next(text for text in _FENCED.findall(part) if text.startswith(first))
    return "".join(line for line in found.splitlines(True) if not _LEFT_OUT.match(line))


def start_controlplane(lab: Lab, machine: str) -> dict[str, Any]:
    """Start it and wait until it serves; what it tells of itself."""
    lab.start(machine, CONTROLPLANE)
    ready = Path("/var/lib/nsml/controlplane/ready.json")
    try:
        told = wait_for(lambda: lab.on(machine, f"cat {ready} 2> /dev/null || true"), what="ready")
    except AssertionError as error:
        raise AssertionError(lab.log(machine, CONTROLPLANE)) from error
    return dict(json.loads(told))


def test_one_control_plane_is_set_up_as_it_says(tmp_path: Path) -> None:
    with Lab(tmp_path, {"gpu": 11}) as lab:
        lab.on("gpu", block("The control plane", "useradd"))
        ready = start_controlplane(lab, "gpu")
        said = lab.on(
            "gpu", block("The control plane", "export NSML_SERVER") + "/opt/nsml/bin/nsml status -j"
        )
    made, token, join_token, status = said.splitlines()
    assert "kim" in made
    assert token.startswith("nsml_")
    assert re.fullmatch(r"nsml_\S+\.[0-9a-f]{64}", join_token)
    assert json.loads(status)["conditions"] == []
    assert ready["listen"] == "gpu.lab:18553"


FOREIGN = """
mkdir -p -m 755 /var/lib/foreign; touch /var/lib/foreign/lock
install -m 600 /dev/null /run/pgpass; touch /run/agent.key; chmod 600 /run/agent.key
cat > /run/controlplane.toml <<'END'
data = "/var/lib/foreign"
address = "127.0.0.1:0"
history = "postgresql://nsml@127.0.0.1:1/nsml?passfile=/run/pgpass"
END
cat > /run/agent.toml <<'END'
node = "gpu"
server = "127.0.0.1:1"
data = "/var/lib/foreign"
END
cd /
as_user() { setpriv --reuid nsml --regid nsml --init-groups /opt/nsml/bin/$@ 2>&1 || true; }
as_user nsml-controlplane --check --config /run/controlplane.toml
as_user nsml-controlplane --config /run/controlplane.toml
as_user nsml-agent --config /run/agent.toml
echo 'authority_file = "/run/pgpass"' >> /run/agent.toml
as_user nsml-agent --check --config /run/agent.toml
"""


def test_what_belongs_to_another_account_is_named(tmp_path: Path) -> None:
    """As after a start by root, by mistake."""
    with Lab(tmp_path, {"gpu": 11}) as lab:
        lab.on("gpu", block("The control plane", "useradd").partition("cat >")[0])
        lines = lab.on("gpu", FOREIGN).splitlines()
    owner = "it belongs to root, and this program runs as nsml"
    assert f"bad   data                    /var/lib/foreign: {owner}" in lines
    closed = f"/run/pgpass: Permission denied; {owner}"
    assert f"bad   history (passfile)      {closed}" in lines
    refused = f"cannot use the data folder /var/lib/foreign: {owner}"
    assert [line for line in lines if refused in line] == [
        f"nsml-controlplane: {refused}",
        f"nsml-agent: {refused}",
    ]
    assert lines[-1] == f"nsml-agent: authority_file: {closed}"
    assert "Errno" not in "".join(lines)


ENDLESS = """
import itertools, time
for step in itertools.count():
    print("step", step, flush=True)
    time.sleep(0.1)
"""


@pytest.mark.long("eleven servers on nine machines, started one after the other as a person does")
def test_three_control_planes_are_set_up_as_it_says_and_go_on_without_their_leader(
    tmp_path: Path,
) -> None:
    require_etcd()
    addresses = {"etcd-1": 1, "etcd-2": 2, "etcd-3": 3, "cp1": 11, "cp2": 12, "cp3": 13}
    with Lab(tmp_path, {**addresses, "db": 21, "minio": 22, "gpu": 31}) as lab:
        shared = tmp_path / "authority"
        shared.mkdir()
        certificates = next(text for text in _FENCED.findall(CERTIFICATES) if "issue()" in text)
        more = "issue etcd-2 IP:10.0.0.2\nissue etcd-3 IP:10.0.0.3\n"
        lab.on("db", f"cd {shared}\n{certificates}{more}")
        for number in (1, 2, 3):
            _start_etcd(lab, shared, number)
        _start_postgres(lab, shared)
        _start_s3(lab, shared)
        for number in (1, 2, 3):
            _prepare_controlplane(lab, shared, number)
            start_controlplane(lab, f"cp{number}")
            if number == 1:
                lab.on("cp1", f"cp -p /var/lib/nsml/controlplane/platform.key {shared}")
        token, join_token = lab.on(
            "cp1", block("The control plane", "export NSML_SERVER")
        ).splitlines()[1:]
        _start_agent(lab, join_token)

        def nsml(arguments: str) -> str:
            return lab.on("gpu", f"cd /run/code; /opt/nsml/bin/nsml {arguments}")

        digest = join_token.rpartition(".")[2]
        lab.on("gpu", f"mkdir /run/code; printf %s {shlex.quote(ENDLESS)} > /run/code/train.py")
        lab.on("gpu", "echo 'print(\"done\")' > /run/code/main.py")
        nsml(f"login cp1.lab:18553#{digest} --token-stdin <<< {token}")

        def status() -> Any:
            return json.loads(nsml("status -j"))

        def lines() -> int:
            return len(nsml("logs kim/None/1").splitlines())

        def session(number: int) -> Any:
            listed = json.loads(nsml("ps -a -j"))["items"]
            return next(one for one in listed if one["name"] == f"kim/None/{number}")

        wait_for(lambda: status()["nodes_ready"] == 1, what="a node")
        before = status()
        assert before["conditions"] == []
        assert [one["name"] for one in before["members"]] == ["cp1", "cp2", "cp3"]
        nsml("run -g 1 -e train.py")
        wait_for(lambda: lines() > 3, what="output")
        lab.kill(before["leader"], CONTROLPLANE)
        wait_for(lambda: status()["leader"] not in {"", before["leader"]}, what="another leader")
        seen = lines()
        nsml("run -g 1")
        wait_for(lambda: session(2)["state"] == "SUCCEEDED", what="a session placed by the next")
        wait_for(lambda: lines() > seen, what="more output")
        assert (session(1)["state"], session(1)["attempt"]) == ("RUNNING", 1)
        # What is away comes back by the line of its unit.
        start_controlplane(lab, before["leader"])
        wait_for(lambda: len(status()["members"]) == 3, what="three control planes")
        nsml("stop kim/None/1 --yes")
        wait_for(lambda: session(1)["state"] not in {"RUNNING", "FINALIZING"}, what="the end")


def _start_etcd(lab: Lab, shared: Path, number: int) -> None:
    """As the README says of each member, which has a name, an address and a certificate of its own."""
    machine = f"etcd-{number}"
    files = block("The control plane", "install -d /etc/nsml")
    own = [
        line.replace("etcd-1", machine).replace("10.0.0.1", f"10.0.0.{number}")
        if not line.startswith("initial-cluster:")
        else line
        for line in files.splitlines()
    ]
    copied = f"cp -p {machine}.pem /etc/nsml/etcd.pem; cp -p {machine}.key /etc/nsml/etcd.key"
    lab.on(machine, "\n".join(own))
    lab.on(machine, f"cd {shared}; {copied}; cp -p ca.pem /etc/nsml/etcd-ca.pem")
    lab.on(machine, block("The control plane", "chown nsml-etcd"))
    lab.start(machine, ETCD)


def _start_postgres(lab: Lab, shared: Path) -> None:
    settings, access = next(
        text for text in _FENCED.findall(CERTIFICATES) if "ssl_cert_file" in text
    ).split("\n\n")
    programs = require_postgres()
    user = "setpriv --reuid postgres --regid postgres --init-groups"
    data = "/var/lib/postgresql"
    lab.on(
        "db",
        f"mkdir -p /etc/postgresql {data} /run/postgresql; cp -p {shared}/db.* /etc/postgresql\n"
        f"chown postgres: /etc/postgresql/db.key {data} /run/postgresql\n"
        f"{user} {programs}/initdb --no-sync -D {data}/data --auth peer\n"
        f"printf %s {shlex.quote(settings)} >> {data}/data/postgresql.conf\n"
        f"printf %s {shlex.quote(access)} >> {data}/data/pg_hba.conf\n"
        f"setsid {user} {programs}/postgres -D {data}/data > /run/postgres.log 2>&1 < /dev/null &\n"
        f"until {user} {programs}/pg_isready --quiet; do sleep 0.1; done\n"
        f"""{user} {programs}/psql -c "create role nsml login password 'PASSWORD'"\n"""
        f"{user} {programs}/createdb --owner nsml nsml",
    )


_BUCKET = """
import boto3
s3 = boto3.client("s3", endpoint_url="https://minio.lab:9000", region_name="us-east-1", verify="ca.pem",
    aws_access_key_id="KEY", aws_secret_access_key="SECRET")
s3.create_bucket(Bucket="nsml")
"""


def _start_s3(lab: Lab, shared: Path) -> None:
    # Else moto takes the first label of any host for the name of a bucket.
    server = f"S3_IGNORE_SUBDOMAIN_BUCKETNAME=true setsid {BIN}/moto_server -H 0.0.0.0 -p 9000"
    lab.on(
        "minio",
        f"cd {shared}\n{server} -c minio.pem -k minio.key > /run/s3.log 2>&1 < /dev/null &\n"
        "until curl -sf --cacert ca.pem https://minio.lab:9000/moto-api/; do sleep 0.1; done\n"
        f"{BIN}/python -c {shlex.quote(_BUCKET)}",
    )


def _prepare_controlplane(lab: Lab, shared: Path, number: int) -> None:
    machine = f"cp{number}"
    users = block("The control plane", "useradd").partition("cat >")[0]
    settings = block("Three control planes", "cat > /etc/nsml/controlplane.toml")
    own = settings.replace("cp1", machine).replace("10.0.0.11", f"10.0.0.1{number}")
    lab.on(
        machine,
        f"{users}\numask 077; cd {shared}\n"
        "for whose in etcd db minio; do cp -p ca.pem /etc/nsml/$whose-ca.pem; done\n"
        "cp -p etcd-client.pem etcd-client.key /etc/nsml\n"
        "echo db.lab:5432:nsml:nsml:PASSWORD > /etc/nsml/pgpass\n"
        "printf '[default]\\naws_access_key_id = KEY\\naws_secret_access_key = SECRET\\n'"
        f" > /etc/nsml/s3.credentials\numask 022\n{own}",
    )
    if number > 1:
        lab.on(
            machine,
            "install -d -m 700 -o nsml -g nsml /var/lib/nsml /var/lib/nsml/controlplane\n"
            f"install -m 600 -o nsml -g nsml {shared}/platform.key /var/lib/nsml/controlplane",
        )
    check = "/opt/nsml/bin/nsml-controlplane --check --config /etc/nsml/controlplane.toml"
    as_user = "setpriv --reuid nsml --regid nsml --init-groups"
    assert "bad" not in lab.on(machine, f"cd /; {as_user} {check}")


def _start_agent(lab: Lab, join_token: str) -> None:
    lines = block("A GPU machine", "export NSML_DATA").replace("gpu.lab", "cp1.lab")
    told = lines.replace("--systemd", f"--systemd --token-stdin <<< {join_token}")
    lab.on("gpu", told + "echo 'simulate_gpus = 2' > $NSML_DATA/agent.site.toml")
    lab.start("gpu", AGENT)
