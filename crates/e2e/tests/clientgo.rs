//! Programs written with client-go (`tests/clientgo`): protobuf, informers, elections, apply.

use anyhow::{Result, ensure};
use e2e::clients;
use tokio::process::Command;

/// One test a check: a fresh server, the program as a child.
macro_rules! checks {
    ($($test:ident: $check:literal $($setting:literal)?,)*) => {
        const CHECKS: &[&str] = &[$($check),*];
        $(#[tokio::test]
        async fn $test() -> Result<()> {
            check($check, &[$($setting)?]).await
        })*
    };
}

checks! {
    typed_configurations_are_applied: "apply",
    one_request_tells_what_there_is: "discovery",
    objects_without_a_type: "dynamic",
    an_informer_of_a_resource_by_name: "dynamic-informer",
    failures_are_told_apart: "errors",
    events_of_both_apis_are_counted: "events",
    service_accounts_act_by_token: "identity",
    every_kind_is_followed_in_protobuf: "informers-every-kind",
    informers_that_list: "informers-listing" "KUBE_FEATURE_WatchListClient=false",
    objects_that_enter_and_leave_a_selector: "informers-selectors",
    informers_that_stream: "informers-streaming",
    candidates_take_turns: "leader-election",
    metadata_alone: "metadata",
    pages_of_one_moment: "pager",
    nothing_but_protobuf: "protobuf",
    counters_agree: "retry-on-conflict",
    a_watch_is_taken_up_where_it_ended: "retry-watcher",
    scales_of_any_kind: "scale",
    tables_as_kubectl_asks_for_them: "table",
    a_controller_with_a_queue: "workqueue",
}

async fn check(name: &str, settings: &[&str]) -> Result<()> {
    let server = clients::server().await?;
    let mut command = Command::new(clients::tool("clientgo")?);
    command.arg(server.kubeconfig()).arg(name);
    command.envs(settings.iter().filter_map(|setting| setting.split_once('=')));
    let told = clients::run(&server, &mut command).await?;
    ensure!(told.trim_end().ends_with(&format!("ok {name}")), "{told}");
    Ok(())
}

#[tokio::test]
async fn no_check_is_left_out() -> Result<()> {
    let listed = Command::new(clients::tool("clientgo")?).arg("list").output().await?;
    let listed = String::from_utf8(listed.stdout)?;
    ensure!(listed.lines().eq(CHECKS.iter().copied()), "{listed}");
    Ok(())
}
