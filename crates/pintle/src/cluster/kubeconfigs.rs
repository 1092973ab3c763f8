//! The kubeconfig files of a cluster: written at the start, and again whenever one of their
//! certificates was renewed, long before it ends, while the process runs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use client::kubeconfig::{self, Entry};
use host::journal::Journal;
use host::layout::Layout;
use parking_lot::Mutex;
use pki::{Identity, Keeper};
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};

use crate::cluster::identities::Identities;
use crate::cluster::user;

/// How often certificates are looked at. They are due for weeks before they end.
const LOOK: Duration = Duration::from_secs(3600);
const ADMIN: &str = "kubernetes-admin";

/// One user's file.
struct User {
    path: PathBuf,
    keeper: Arc<Keeper>,
    /// The file without the certificate.
    entry: Entry,
    /// Whose context is also merged into the kubeconfig of the person who started us.
    merged: bool,
    /// What the file holds.
    written: Mutex<Option<Identity>>,
}

/// Every kubeconfig of a cluster.
pub struct Kubeconfigs {
    users: Vec<User>,
    layout: Layout,
}

impl Kubeconfigs {
    /// Those of the administrator, of the components that may run elsewhere, and of the node.
    pub fn of(identities: &Identities, layout: &Layout, node: &str, server: &str, merge: bool) -> Result<Self> {
        let node = format!("system:node:{node}");
        let admin = layout.admin_kubeconfig();
        let file = |name: &str| layout.config.join(name);
        let users = [
            (ADMIN, "system:masters", admin),
            ("system:kube-scheduler", "", file("scheduler.kubeconfig")),
            ("system:kube-controller-manager", "", file("controller-manager.kubeconfig")),
            ("system:kube-proxy", "", file("proxy.kubeconfig")),
            ("system:pintle:dns", "", file("dns.kubeconfig")),
            ("system:network-policy", "", file("network-policy.kubeconfig")),
            (node.as_str(), "system:nodes", file("kubelet.kubeconfig")),
        ]
        .into_iter()
        .map(|(name, group, path)| {
            let keeper = identities.client(name, group)?;
            let entry = identities.entry(name, group, server);
            let merged = merge && name == ADMIN;
            Ok(User { path, keeper, entry, merged, written: Mutex::new(None) })
        })
        .collect::<Result<_>>()?;
        Ok(Self { users, layout: layout.clone() })
    }

    /// Writes what is not as it should be.
    pub fn write(&self) -> Result<()> {
        for user in &self.users {
            let identity = user.keeper.identity();
            if user.written.lock().as_ref() == Some(&identity) {
                continue;
            }
            let entry = Entry {
                certificate_pem: identity.certificate.clone(),
                key_pem: identity.key.clone(),
                ..user.entry.clone()
            };
            kubeconfig::write(&user.path, &entry.render())?;
            if user.merged {
                let mut journal = Journal::open(&self.layout.journal()).context("the journal of host changes")?;
                user::merge_kubeconfig(&entry, &mut journal)?;
            }
            *user.written.lock() = Some(identity);
        }
        Ok(())
    }

    /// Writes them again when certificates were renewed, until the stage stops.
    pub async fn keep(self: Arc<Self>, clock: SharedClock, stage: Stage) {
        let stopped = stage.stopped();
        tokio::select! {
            () = stopped => {}
            () = self.renew(&clock) => {}
        }
    }

    async fn renew(self: &Arc<Self>, clock: &SharedClock) {
        loop {
            clock.sleep(LOOK).await;
            let own = self.clone();
            // Files are written and synced.
            match tokio::task::spawn_blocking(move || own.write()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "kubeconfigs not renewed; trying again in an hour"),
                Err(error) => tracing::error!(%error, "kubeconfigs not renewed; trying again in an hour"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stdx::Clock;
    use stdx::clock::{ManualClock, RealClock};

    use super::*;

    fn certificate(path: &Path) -> Vec<u8> {
        let connection = kubeconfig::Connection::load(path, None).expect("a kubeconfig");
        connection.certificate_pem.expect("a certificate")
    }

    async fn until(what: &str, done: impl Fn() -> bool + Sync) {
        let reached = async {
            while !done() {
                tokio::task::yield_now().await;
            }
        };
        RealClock::shared().timeout(Duration::from_secs(60), reached).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    #[tokio::test]
    async fn the_running_process_renews_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let layout = Layout::below(dir.path());
        let manual = ManualClock::new("2026-08-01T00:00:00Z".parse().expect("a time"));
        let clock: SharedClock = Arc::new(manual.clone());
        let identities = Identities::open(&layout.pki(), &clock).expect("keys");
        let files = Kubeconfigs::of(&identities, &layout, "n", "https://127.0.0.1:6443", false).expect("kubeconfigs");
        files.write().expect("written");
        let paths = [layout.admin_kubeconfig(), layout.config.join("kubelet.kubeconfig")];
        let before = paths.clone().map(|path| certificate(&path));

        let (files, stage) = (Arc::new(files), Stage::new());
        stage.spawn(files.clone().keep(clock.clone(), stage.clone()));
        until("it sleeps", || manual.next_timer().is_some()).await;
        manual.advance(LOOK);
        // It looks, writes nothing, and sleeps again.
        let now = manual.now();
        until("it sleeps again", || manual.next_timer().is_some_and(|at| at > now)).await;
        assert_eq!(paths.clone().map(|path| certificate(&path)), before, "nothing was due");
        // Ten months later.
        manual.advance(Duration::from_secs(300 * 24 * 3600));
        let renewed = || paths.iter().zip(&before).all(|(path, old)| certificate(path) != *old);
        until("both are renewed", renewed).await;
        stage.stop();
    }
}
