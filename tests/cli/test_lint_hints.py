"""What the names of tools sound like: a table of the tools that well-known servers have, and names made to mislead.

A wrong warning teaches people to look away, so every name here is judged: L loses something, R only reads, - neither.
"""

from typing import Any

import pytest

from dovetail.cli.lint.rules import findings_of_hints

SERVERS = {  # the name that a server gives itself, and its tools
    "github-mcp-server": """
        L delete_file  L delete_workflow_run_logs  L delete_pending_pull_request_review  L remove_sub_issue
        R get_me  R get_file_contents  R list_commits  R list_workflow_run_artifacts  R search_code
        - create_or_update_file  - push_files  - merge_pull_request  - fork_repository  - create_branch
        - dismiss_notification  - mark_all_notifications_read  - cancel_workflow_run  - rerun_failed_jobs
        - pull_request_read  - issue_write  - request_copilot_review  - download_workflow_run_artifact
    """,
    "secure-filesystem-server": """
        R read_text_file  R read_media_file  R read_multiple_files  R list_directory  R list_directory_with_sizes
        R search_files  R get_file_info  R list_allowed_directories
        - write_file  - edit_file  - create_directory  - move_file  - directory_tree
    """,
    "mcp-git": """
        L git_reset  - git_status  - git_diff_unstaged  - git_commit  - git_add  - git_log  - git_checkout  - git_show
    """,
    "memory-server": """
        L delete_entities  L delete_observations  L delete_relations
        R read_graph  R search_nodes  - open_nodes  - create_entities  - add_observations
    """,
    "slack": """
        R slack_list_channels  R slack_get_channel_history  R slack_get_users  L slack_delete_message
        - slack_post_message  - slack_reply_to_thread  - slack_add_reaction  L slack_remove_reaction
    """,
    "postgres-mcp": """
        R list_schemas  R list_objects  R get_object_details  - execute_sql  - explain_query  - analyze_db_health
    """,
    "mongodb": """
        L drop-collection  L drop-database  L drop-index  L delete-many  L atlas-delete-cluster
        - insert-many  - aggregate  R find  R count  R list-databases  - rename-collection  - update-many
        R atlas-list-clusters  - atlas-create-free-cluster  - export
    """,
    "redis": """
        L delete  L json_del  L xdel  R get  - set  - hset  - expire  - rename  - lpush  - publish  L unsubscribe
    """,
    "Playwright": """
        - browser_click  - browser_close  - browser_drag  - browser_drop  - browser_evaluate  - browser_fill_form
        - browser_navigate_back  - browser_press_key  - browser_snapshot  - browser_take_screenshot
        - browser_file_upload  - browser_handle_dialog  - browser_tabs  L browser_cookie_delete  L browser_cookies_clear
        R browser_get_config  - browser_console_messages  - browser_wait_for
    """,
    "mcp-atlassian": """
        L jira_delete_issue  L jira_remove_issue_link  L confluence_delete_page  R jira_search  R jira_get_issue
        R confluence_get_page_children  - jira_transition_issue  - jira_add_comment  - confluence_update_page
    """,
    "kubernetes-mcp-server": """
        L pods_delete  L resources_delete  L helm_uninstall  R pods_list  R pods_list_in_namespace  R pods_get
        - pods_exec  - pods_run  - pods_log  R resources_list  - resources_create_or_update  - helm_install
    """,
    "Notion API": """
        L API-delete-a-block  - API-post-search  - API-patch-page  R API-get-block-children  - API-create-a-comment
    """,
    "supabase": """
        L delete_branch  L reset_branch  - merge_branch  - pause_project  - restore_project  - apply_migration
        R list_tables  R get_logs  R search_docs  - deploy_edge_function  - rebase_branch
    """,
    "stripe": """
        - create_refund  - cancel_subscription  R list_invoices  - finalize_invoice  R fetch_stripe_resources
    """,
    "chroma": """
        L chroma_delete_collection  L chroma_delete_documents  R chroma_list_collections  R chroma_get_documents
        - chroma_peek_collection  R chroma_count_collection_documents  - chroma_fork_collection
    """,
    "aws": """
        L terminate_instances  L purge_queue  L empty_bucket  L revoke_security_group  - stop_instances  - reboot
        R describe_instances  - assume_role
    """,
    "desk": """
        L kill_process  L emptyTrash  L uninstallApp  L noteDelete  L wipe_disk  L forget_memory  L prune_images
        L clear_history  L clearCache  L truncate_table  L overwrite_file  L discard_changes  L erase  L clear
    """,
    "misleading": """
        - format_text  - clear_sky_forecast  R get_reset_date  R get_deleted_items  R list_removed_users
        - reset_password
        - truncate_text  - drop_pin  - clean_html  - formatDisk  - undelete_note  - restore_deleted  - set_auto_delete
        - schedule_delete  - cancel_delete  - undo_remove  - is_terminated  - killer_whale_facts  - removable_media
        - get_or_create_user  - find_and_replace  - getaway_plans  - listen  - reading_time  - query  - show_dialog
        - clear_text_password_check  - empty_cart_reminder  - reset_filters  - a  - 123  - ñandú  - enable_auto_kill
        - confirm_delete  - countdown  - search_and_index  R search_and_rescue_teams_list  - flush_toilet
    """,
}  # fmt: skip
SOUNDS = {"hint-destructive": "L", "hint-read-only": "R"}


def table() -> list[tuple[str, str, str]]:
    rows = []
    for server, text in SERVERS.items():
        words = text.split()
        rows += [(server, name, sound) for sound, name in zip(words[::2], words[1::2], strict=True)]
    return rows


@pytest.mark.parametrize("server", SERVERS)
def test_names_are_heard_as_people_hear_them(server: str) -> None:
    expected = {name: sound for where, name, sound in table() if where == server}
    found = findings_of_hints([{"name": name} for name in expected], server)
    heard = {finding.place.removeprefix("tool "): SOUNDS[finding.rule] for finding in found}
    assert {name: heard.get(name, "-") for name in expected} == expected


def test_the_table_is_long_enough() -> None:
    assert len({name for _, name, _ in table()}) > 150


def heard(name: str, server: str = "", **annotations: Any) -> list[tuple[str, str]]:
    found = findings_of_hints([{"name": name, "annotations": annotations}], server)
    return [(finding.rule, finding.detail) for finding in found]


@pytest.mark.parametrize(
    ("name", "annotations", "rules"),
    [
        ("delete_note", {}, ["hint-destructive"]),
        ("delete_note", {"readOnlyHint": False}, ["hint-destructive"]),
        ("delete_note", {"destructiveHint": True}, []),
        ("delete_note", {"destructiveHint": False}, []),
        ("delete_note", {"readOnlyHint": True}, ["hint-contradiction"]),
        ("note_delete", {"readOnlyHint": True}, ["hint-contradiction"]),
        ("remove_background", {"readOnlyHint": True}, []),  # of a picture that was sent along
        ("clear_cache", {"readOnlyHint": True}, []),
        ("bake", {"readOnlyHint": True, "destructiveHint": True}, ["hint-contradiction"]),
        ("get_note", {}, ["hint-read-only"]),
        ("get_note", {"readOnlyHint": False}, []),
        ("get_note", {"readOnlyHint": True}, []),
        ("get_note", {"destructiveHint": True}, []),  # it says what it is
        ("bake", {}, []),
    ],
)
def test_hints_are_held_against_the_name(name: str, annotations: dict[str, Any], rules: list[str]) -> None:
    assert [rule for rule, _ in heard(name, **annotations)] == rules


def test_the_word_that_is_heard_is_told() -> None:
    assert heard("slack_delete_message", "slack-mcp") == [("hint-destructive", "delete")]
    assert heard("slack_delete_message", "else") == []  # only a server's own name, or one of many tools, is a prefix
    assert heard("delete_note", readOnlyHint=True) == [("hint-contradiction", "readOnlyHint, and the word delete")]
