"""`tidelog cluster recover`: a cluster that has lost a majority of its voters' folders begins anew with one of them."""

from __future__ import annotations

from pathlib import Path

import click

from tidelog.cli.terminal.session import Failure, counted
from tidelog.process.shadowing import check_not_hidden


@click.command()
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--accept-loss", is_flag=True, help="Do it; without it nothing is changed.")
def recover(data_dir: Path, accept_loss: bool) -> None:
    """Begin the cluster anew with DATA_DIR of one voter, after a majority of the voters has lost its folders for good.

    For a broker that is stopped, while all others are stopped, too. No cluster is asked. Without --accept-loss it tells
    what the folder knows, and changes nothing (exit status 1). Records are not touched. What only the lost voters knew
    of the metadata is gone: streams and settings of the last moments, and who was in sync. So take the voter that ran
    last, and bring back every other folder that can be had.

    \b
    Afterwards (docs/operations.md, "A lost majority"):
      1. Copy DATA_DIR/raft into the empty data folders of the voters that have lost theirs.
      2. Start all brokers; those with such a folder with --replace.
    """
    check_not_hidden("metadata")
    from dataplane.log.storage.data_dir import kept_from_brokers
    from dataplane.log.storage.log_errors import DataDirError
    from metadata.cluster import cluster_recovery
    from metadata.commands.cluster_state import ClusterState
    from metadata.raft import RaftError
    from metadata.raft.new_beginning import begin_anew, read
    from wire.errors import CorruptData

    directory = data_dir.absolute() / "raft"
    try:
        with kept_from_brokers(data_dir):
            state = ClusterState()
            beginning = read(directory, state.restore, state.apply)
            if not state.cluster_id:
                raise Failure(f"{directory} knows of no cluster; give the data folder of a voter that has served")
            voters = [broker for broker, known in sorted(state.brokers.items()) if known.raft_address]
            known = (
                f"{data_dir} knows cluster {state.cluster_id} up to Raft entry {beginning.index} of term"
                f" {beginning.term} (the last {beginning.uncommitted} may not have been committed): generation"
                f" {state.generation}, {counted(len(state.streams), 'stream')}, voters {', '.join(voters) or 'none'}"
            )
            if not accept_loss:
                raise Failure(
                    f"nothing was changed. {known}. Whatever was decided after that is given up. If a majority of the"
                    " voters has its folders, start those instead; if not, stop all brokers and add --accept-loss"
                )
            kept = begin_anew(directory, beginning, cluster_recovery.advanced(state.snapshot()))
    except (DataDirError, RaftError, CorruptData) as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{directory} cannot be written: {error.strerror or error}") from error
    click.echo(f"{known}. The cluster begins anew there; the files of before are in {kept}.")
    click.echo(
        f"Copy {directory} into the empty data folders of the voters that have lost theirs, then start all brokers,"
        " those with such a folder with --replace."
    )
