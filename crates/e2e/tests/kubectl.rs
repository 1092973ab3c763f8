//! Real kubectl, command by command: each session of `kubectl/` on a fresh server.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use e2e::{clients, transcript};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubectl")
}

/// One test a session.
macro_rules! sessions {
    ($($session:ident,)*) => {
        const SESSIONS: &[&str] = &[$(stringify!($session)),*];
        $(#[tokio::test]
        async fn $session() -> Result<()> {
            let server = clients::server().await?;
            let session = folder().join(concat!(stringify!($session), ".txt"));
            transcript::play(&server, &session).await
        })*
    };
}

sessions! {
    apply,
    auth,
    certificates,
    create,
    create_options,
    custom_resources,
    delete_and_wait,
    discovery,
    drain,
    edit_patch_replace,
    every_kind,
    explain,
    expose,
    get,
    label_annotate,
    nodes,
    prune,
    quota,
    rollout,
    rollout_sets,
    scale,
    server_side_apply,
    set,
    wait,
    watch,
}

#[test]
fn no_session_is_left_out() -> Result<()> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        found.extend(name.strip_suffix(".txt").map(str::to_owned));
    }
    found.sort();
    ensure!(found == SESSIONS, "{found:?}");
    Ok(())
}
