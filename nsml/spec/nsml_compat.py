"""What users of NAVER's NSML knew, and what holds of it here: one row a fact, each with the name of its test.

`nsml help nsml` prints the table. A test fails for a row without a test, and for a test without a row
(tests/unit/compat).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple


class Verdict(Enum):
    """How a fact of NSML holds here."""

    SAME = "as in NSML"
    OURS = "here it differs"
    ABSENT = "not here"


class Fact(NamedTuple):
    """A fact of NSML.

    Attributes:
        section: `SDK`, `project`, `command` or `table`.
        fact: what users of NSML know.
        test: the name of the function that checks the verdict, in tests/unit/compat.
        verdict: how it holds here.
        here: what differs, or what to use instead; "" if nothing does.
    """

    section: str
    fact: str
    test: str
    verdict: Verdict = Verdict.SAME
    here: str = ""


_SDK: Final = "SDK"
_PROJECT: Final = "project"
_COMMAND: Final = "command"
_TABLE: Final = "table"
_OURS, _ABSENT = Verdict.OURS, Verdict.ABSENT
_STYLE: Final = "with style nsml"

SDK: Final[Sequence[Fact]] = (
    Fact(_SDK, "bind(save, load, infer) by position", "bind_by_position"),
    Fact(_SDK, "the last bind counts", "last_bind_counts"),
    Fact(_SDK, "other keywords of bind reach save and load", "bind_keywords_are_passed_on"),
    Fact(_SDK, "use_nsml_legacy=False is a flag of bind, not passed on", "legacy_flag_stays"),
    Fact(_SDK, "bind(model=..., optimizer=...) saves objects", "objects_without_functions"),
    Fact(_SDK, "save and load are called with one argument", "functions_of_one_argument"),
    Fact(_SDK, "save(checkpoint=...), save(iteration=...), a number or a text", "names_of_saves"),
    Fact(_SDK, "save() is named by the time", "save_without_a_name"),
    Fact(_SDK, "save_fn goes before the bound function", "save_function_of_the_call"),
    Fact(_SDK, "the same name overwrites", "same_name_overwrites"),
    Fact(_SDK, "load(NAME) right after save(NAME)", "load_after_save"),
    Fact(_SDK, "load(checkpoint=...), load(iteration=...), load_fn", "keywords_of_load"),
    Fact(_SDK, "load(NAME, session='USER/DATASET/N')", "load_of_a_session"),
    Fact(_SDK, "KeyError 'No model: USER/DATASET/N/nsml_model/NAME,'", "missing_is_a_key_error"),
    Fact(_SDK, "save and load get different new folders", "folders_are_new"),
    Fact(_SDK, "only files below the folder of save are kept", "only_files_below_are_kept"),
    Fact(_SDK, "save may use its path as a file (2018)", "path_as_a_file"),
    Fact(_SDK, "save may make its folder itself", "path_as_a_folder_to_make"),
    Fact(_SDK, "load gets the file, if there is only one (2018-19)", "load_of_the_only_file"),
    Fact(_SDK, "with use_nsml_legacy=False always the folder", "load_of_the_folder"),
    Fact(_SDK, "paused() prints Paused.", "paused_is_printed"),
    Fact(_SDK, "paused() loads --iteration and returns in a fork", "paused_returns_in_a_fork"),
    Fact(_SDK, "report(step=..., summary=True, scope=locals())", "report_is_recorded"),
    Fact(_SDK, "report(False, step=...) by position", "report_with_false"),
    Fact(_SDK, "a__b is the metric a/b; names have / : @", "names_of_metrics"),
    Fact(_SDK, "walltime is always the time of the call", "walltime_is_the_clocks"),
    Fact(
        *(_SDK, "a value that is no number raises TypeError", "values_that_are_no_numbers"),
        *(_OURS, "it is logged, and training goes on; nsml.strict() raises"),
    ),
    Fact(
        *(_SDK, "float32 and tensors raise TypeError", "numbers_of_other_libraries"),
        *(_OURS, "they are recorded"),
    ),
    Fact(_SDK, "the last report before a save is its summary", "summary_of_a_checkpoint"),
    Fact(_SDK, "infer(data) calls the bound function", "infer_calls_the_function"),
    Fact(_SDK, "copy(source, target) of dicts and objects", "copy_in_place"),
    Fact(_SDK, "cache(preprocess_fn, output_path, **kw)", "cache_calls_the_function"),
    Fact(
        *(_SDK, "Visdom() posts to NSML's server", "visdom_is_the_programs_own", _OURS),
        "the program's own class; its windows are kept as an artifact",
    ),
    Fact(_SDK, "all constants in nsml and in nsml.constants", "constants_in_both_modules"),
    Fact(_SDK, "nsml.encoder, nsml.decoder", "empty_modules"),
    Fact(_SDK, "DATASET_PATH is a list with two -d", "paths_of_datasets"),
    Fact(_SDK, "GPU_NUM is false for 0, and int(GPU_NUM)", "number_of_gpus"),
    Fact(_SDK, "outside of NSML: False, '' and 0", "constants_outside"),
    Fact(_SDK, "IS_DATASET, the older name of HAS_DATASET", "older_name_of_has_dataset"),
    Fact(
        *(_SDK, "NSML_NFS_OUTPUT is a folder of all sessions", "no_shared_folder", _ABSENT),
        "always ''; nsml run --output-dataset, nsml.artifact",
    ),
    Fact(_SDK, "nsml of the platform, not a nsml.py of the project", "local_stub_loses"),
    Fact(_SDK, "POST and DELETE to NSML_METRIC_API (2022)", "metric_api"),
    Fact(_SDK, "in a submission paused() predicts and never returns", "submission_ends"),
    Fact(_SDK, "a save before paused() is harmless in a submission", "save_before_paused"),
    Fact(_SDK, "infer gives [(prob, pred)]; a line for each pred", "lines_of_predictions"),
    Fact(_SDK, "a tuple of the loader is two arguments of infer", "two_arguments_of_infer"),
    Fact(_SDK, "feed_infer(output_file, infer_func) of the owner", "owners_feed"),
    Fact(_SDK, "the loader of the dataset, not the project's copy", "owners_loader_counts"),
    Fact(_SDK, "DATASET_PATH is a text in a submission", "one_dataset_in_a_submission"),
    Fact(_SDK, "an empty file: output result of inference is nothing", "empty_predictions"),
    Fact(_SDK, "Error: Error occurred while loading model", "load_that_fails"),
    Fact(
        *(_SDK, "An error occurred somewhere in your code.", "infer_that_fails"),
        *(_OURS, "with the traceback in the log of a dry run"),
    ),
    Fact(_SDK, "infer that returns None raises TypeError", "infer_of_nothing"),
    Fact(_SDK, "a dry run has test_submit at DATASET_PATH/test", "small_set_is_test"),
    Fact(_SDK, "a dry run without test_submit predicts ten rows", "rows_of_a_dry_run"),
)

PROJECT: Final[Sequence[Fact]] = (
    Fact(_PROJECT, "python -u ENTRY ARGS in /app", "words_of_the_program"),
    Fact(_PROJECT, "data at /data/NAME", "place_of_datasets"),
    Fact(
        *(_PROJECT, "fork adds --pause 1 --iteration CHECKPOINT", "arguments_of_a_fork", _OURS),
        "only of programs that take them; others begin with the checkpoint at nsml.bind",
    ),
    Fact(_PROJECT, "an entry made by Fire", "fire_entries"),
    Fact(_PROJECT, "#nsml: IMAGE heads setup.py or requirements.txt", "image_lines"),
    Fact(
        *(_PROJECT, "nsml/default_ml:latest is the default image", "default_image", _OURS),
        "the node's Python, or the image that the administrator chose",
    ),
    Fact(_PROJECT, "install_requires of setup.py are installed", "packages_of_setup"),
    Fact(_PROJECT, "requirements.txt beside setup.py counts, too", "packages_of_both"),
    Fact(
        *(
            _PROJECT,
            "requirements.txt may name nsml-local, the SDK for local runs",
            "own_sdk",
            _OURS,
        ),
        "left out with a note: a session has the SDK of its node",
    ),
    Fact(_PROJECT, "nsml_package.txt lists Debian packages", "debian_packages"),
    Fact(_PROJECT, ".nsmlignore in the syntax of .gitignore", "ignored_files"),
    Fact(_PROJECT, "a warning about more than 10 MB of code", "warning_of_size"),
    Fact(
        *(_PROJECT, "a plain folder is pushed as train/FOLDER", "plain_folders", _OURS),
        "with -f; --under anywhere else",
    ),
    Fact(_PROJECT, "test is hidden from training", "test_is_hidden"),
    Fact(
        *(_PROJECT, "submit adds --mode test --pause 1, no --iteration"),
        "arguments_of_a_submission",
    ),
    Fact(_PROJECT, "paused() within 600 seconds, predictions within 3600", "times_of_submissions"),
    Fact(_PROJECT, "evaluation.py --prediction FILE: the last line is the score", "last_line"),
    Fact(_PROJECT, "--test_label_path only if evaluation.py knows it", "label_option"),
    Fact(_PROJECT, "a variable test_label_path is no such option (2019)", "label_variable"),
    Fact(
        *(_PROJECT, "run uploads the entry's folder (2018)", "folder_of_the_code", _OURS),
        "the current folder, with the entry in it",
    ),
)

COMMANDS: Final[Sequence[Fact]] = (
    Fact(
        *(_COMMAND, "login asks for a GitHub name and password", "login", _OURS),
        "a token of the administrator; -e changes nothing",
    ),
    Fact(_COMMAND, "--version", "version", _OURS, "nsml VERSION in one line"),
    Fact(_COMMAND, "credit: User : NAME credit N", "credit", _OURS, "a line a project"),
    Fact(_COMMAND, "run -d DATASET, repeatable, or -d A,B", "run_datasets"),
    Fact(_COMMAND, "run -e ENTRY, or ENTRY alone (2017)", "run_entry"),
    Fact(_COMMAND, 'run -a "ARGS"', "run_arguments"),
    Fact(
        *(_COMMAND, "run -c CPUS (2), -g GPUS (1), --memory (24G)", "run_resources", _OURS),
        "1 GPU; default cores and memory are its share of the node",
    ),
    Fact(_COMMAND, "run -g 0", "run_without_gpus"),
    Fact(_COMMAND, "sizes as 12G or 24000000000", "run_sizes"),
    Fact(_COMMAND, "run --shm-size (1G)", "run_shared_memory"),
    Fact(_COMMAND, "run -m MEMO", "run_memo"),
    Fact(_COMMAND, "run -n NODES, --gpu-model MODEL", "run_nodes_and_models"),
    Fact(_COMMAND, "run -v lists the files", "run_verbose"),
    Fact(_COMMAND, "run --hide-client-log", "run_quietly"),
    Fact(_COMMAND, "run --show-default-nsmlignore", "run_default_ignores"),
    Fact(_COMMAND, "run --show-limits", "run_limits"),
    Fact(
        *(_COMMAND, "run --no-verify skips the integrity check", "run_no_verify", _OURS),
        "accepted with a note: every file is verified",
    ),
    Fact(
        *(_COMMAND, "run -i removes the session at its end", "run_interactive", _OURS),
        "it stays, or is removed when asked; --rm removes it",
    ),
    Fact(
        *(_COMMAND, "run --nfs-output", "run_nfs_output", _ABSENT),
        "refused: --keep-files, --output-dataset",
    ),
    Fact(
        *(_COMMAND, "run --gpu-driver-version VERSION", "run_driver_version", _OURS),
        "accepted with a note: the driver is the node's; --gpu-model, --pod",
    ),
    Fact(
        *(_COMMAND, "a run that does not fit is refused at once", "run_queue", _OURS),
        "it waits; --no-queue refuses it",
    ),
    Fact(_COMMAND, "fork -a -c -g --cpu --memory --shm-size -v", "fork_flags"),
    Fact(
        *(_COMMAND, "fork without -c begins with the newest", "fork_without_checkpoint", _OURS),
        "it begins anew; -c @last: with the newest",
    ),
    Fact(_COMMAND, "resume SESSION", "resume"),
    Fact(_COMMAND, "ps hides ended sessions; -a shows all", "ps_all"),
    Fact(_COMMAND, "ps -n N, -d DATASET, -s SESSION", "ps_filters"),
    Fact(_COMMAND, "logs -f, also of ended sessions", "logs"),
    Fact(
        *(_COMMAND, "logs have NSML Log start! and an end; -f 30 minutes", "logs_alone", _OURS),
        "only what the program printed, as long as it runs",
    ),
    Fact(_COMMAND, "stop SESSION", "stop"),
    Fact(_COMMAND, "rm -f, and globs: me/ds/1*, 1?", "rm_globs"),
    Fact(_COMMAND, "memo SESSION TEXT overwrites", "memo"),
    Fact(_COMMAND, "model rm SESSION with globs: '*', '?1', '2*'", "model_rm_globs"),
    Fact(_COMMAND, "model pull to USER_DATASET_N/CHECKPOINT/model", "model_pull"),
    Fact(_COMMAND, "pull [-v] [-f] SESSION PATH: the code", "pull"),
    Fact(_COMMAND, "download -s /app/FILE SESSION PATH", "download"),
    Fact(_COMMAND, "exec SESSION EXPRESSION; sh SESSION 'ls /app'", "exec_and_sh"),
    Fact(
        *(_COMMAND, "command SESSION prints the command line", "command_line", _OURS),
        "of nsml run, ready for a shell",
    ),
    Fact(_COMMAND, "getid SESSION", "getid"),
    Fact(_COMMAND, "diff SESSION SESSION", "diff"),
    Fact(_COMMAND, "inspect SESSION: Status ... OOMKilled ... ExitCode", "inspect"),
    Fact(_COMMAND, "info counts your sessions", "info"),
    Fact(_COMMAND, "plot, events, eventlen SESSION", "plot_and_events"),
    Fact(_COMMAND, "dataset search 'kin_*'", "dataset_search"),
    Fact(_COMMAND, "dataset push -v -f -l -e evaluation.py --private", "dataset_push"),
    Fact(_COMMAND, "gpustat, status", "gpustat_and_status"),
    Fact(_COMMAND, "gpumornitor SESSION", "gpumornitor"),
    Fact(_COMMAND, "backup SESSION", "backup"),
    Fact(_COMMAND, "submit [-t] [-v] [-b BATCH] SESSION CHECKPOINT", "submit"),
    Fact(_COMMAND, "infer SESSION CHECKPOINT", "infer"),
    Fact(_COMMAND, "dataset board [-j] NAME", "dataset_board"),
    Fact(
        *(_COMMAND, "automl", "automl", _ABSENT),
        "comes later; nsml run --sweep lr=0.1,0.01",
    ),
    Fact(_COMMAND, "-j, --json-return of ps, model ls, dataset ls", "json_return"),
)

TABLES: Final[Sequence[Fact]] = (
    Fact(_TABLE, "two blanks between columns, a rule of dashes", "form_of_tables"),
    Fact(
        *(_TABLE, "ps: Name Created Args Status Summary Description", "columns_of_ps", _OURS),
        f"{_STYLE}, with # of Models, Size, Type",
    ),
    Fact(
        *(_TABLE, "Allocated, Running, Zombie, Exited", "statuses", _OURS),
        f"{_STYLE}; waiting ones are Queued or Held",
    ),
    Fact(
        *(_TABLE, "just now, seconds ago, an hour ago, Not created yet", "words_of_ages", _OURS),
        f"{_STYLE}; else 40 seconds ago",
    ),
    Fact(
        *(_TABLE, "Summary: sorted, without step, 3 decimals", "summary_of_ps", _OURS),
        f"{_STYLE}; else in the order of the report",
    ),
    Fact(
        *(_TABLE, "Description: memo, submit of SESSION, the parent", "descriptions", _OURS),
        _STYLE,
    ),
    Fact(
        *(_TABLE, "Type: normal, submit, submit(test)", "types", _OURS),
        f"{_STYLE}; also infer, evaluate",
    ),
    Fact(
        *(_TABLE, "model ls: Checkpoint Last Modified Elapsed", "columns_of_model_ls", _OURS),
        f"{_STYLE}, with Summary, Size",
    ),
    Fact(
        *(_TABLE, "0.000 and no summary without a report", "checkpoint_without_report", _OURS),
        _STYLE,
    ),
    Fact(
        *(_TABLE, "dataset ls: Name Size Last Modified Author", "columns_of_dataset_ls", _OURS),
        f"{_STYLE}, with Description, Tag",
    ),
    Fact(
        *(_TABLE, "-j prints a list", "bare_lists", _OURS),
        f"{_STYLE}; else schema_version and items. Fields are ours: NSML's are not public",
    ),
    Fact(
        *(_TABLE, "Session USER/DATASET/N is started", "message_of_run", _OURS),
        _STYLE,
    ),
    Fact(_TABLE, "USER/None/N without a dataset", "name_without_dataset"),
    Fact(
        *(_TABLE, "Score: 0.9855, then Done", "message_of_submit", _OURS),
        f"{_STYLE}; the rank between them",
    ),
    Fact(
        *(_TABLE, "dataset board: Owner Score Submitted Session", "columns_of_boards", _OURS),
        f"{_STYLE}, with Model, Args; else the same with other words for ages",
    ),
    Fact(
        *(_TABLE, 'Error: Invalid value for "SESSION": No valid sessions', "unknown_session"),
        *(_OURS, f"{_STYLE}, with the cause below"),
    ),
    Fact(
        *(_TABLE, "Rejected: not enough resources for your request", "rejected", _OURS),
        f"{_STYLE}, with --no-queue, with the cause below",
    ),
    Fact(
        *(_TABLE, "Fail to run nsml session due to lack of available GPU", "over_quota", _OURS),
        f"{_STYLE}, with the quota below; it waits where it may",
    ),
    Fact(_TABLE, "Rejected: not enough credit (balance: 0)", "no_credit", _OURS, _STYLE),
    Fact(_TABLE, "wrong team: Invalid request", "denied", _OURS, f"{_STYLE}, with the cause below"),
    Fact(
        *(_TABLE, "INFO[...] NAME SIZE - start, done of each file", "words_of_uploads", _OURS),
        "two lines for all files; -v lists them",
    ),
    Fact(_TABLE, "Only nsml rm is valid for submit sessions", "sealed"),
    Fact(
        *(_TABLE, "a submission's session is gone when it is done", "steps_stay", _OURS),
        "it stays in ps -a, without its output, until nsml rm",
    ),
    Fact(
        *(_TABLE, "one submission an hour", "limits_of_submissions", _OURS),
        "as the board's owner sets it: nsml board info NAME; dry runs have no limit",
    ),
    Fact(_TABLE, "run aborted: Interrupted by user", "interrupted"),
)

FACTS: Final[Sequence[Fact]] = (*SDK, *PROJECT, *COMMANDS, *TABLES)
"""All facts, in the order in which they are shown."""
