//! Where a part spends its time, as people look at it: `go tool pprof` on `/debug/pprof/profile`.

use anyhow::{Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use stdx::ClockExt;
use tokio::process::Command;

/// Functions of the API server have their names, without the program beside the profile.
pub async fn names_functions(cluster: &Cluster) -> Result<()> {
    let file = cluster.root().join("profile");
    let taken = async {
        let take = ["get", "--raw", "/debug/pprof/profile?seconds=3"];
        // Something is to be seen.
        let work = async {
            loop {
                if let Err(error) = cluster.kubectl(&["get", "--raw", "/openapi/v2"]).await {
                    return error;
                }
            }
        };
        tokio::select! {
            taken = cluster.kubectl_output(&take) => taken,
            error = work => Err(error),
        }
    };
    let output = cluster.clock.timeout(PATIENCE, taken).await??;
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    if why.contains("perf_event_open") {
        eprintln!("no profile can be taken here: {why}");
        return Ok(());
    }
    ensure!(output.status.success(), "{why}");
    std::fs::write(&file, &output.stdout)?;
    let mut pprof = Command::new("go");
    pprof.args(["tool", "pprof", "-top", "-nodecount=400"]).arg(&file).kill_on_drop(true);
    let told = cluster.clock.timeout(PATIENCE, pprof.output()).await??;
    let (text, why) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    ensure!(told.status.success(), "{why}");
    for name in ["apiserver::chain", "tokio::runtime"] {
        ensure!(text.contains(name), "{name} is not in\n{text}\n{why}");
    }
    Ok(())
}
