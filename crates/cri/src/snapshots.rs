//! containerd's snapshots, as far as a read-only view of an image needs them.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use stdx::{ClockExt, SharedClock};
use tonic::transport::Channel;

use crate::containerd::in_namespace;
use crate::error::{Error, Result};
use crate::snapshots_v1::snapshots_client::SnapshotsClient;
use crate::snapshots_v1::{
    ListSnapshotsRequest, Mount as Wire, MountsRequest, RemoveSnapshotRequest, ViewSnapshotRequest,
};

const LIMIT: Duration = Duration::from_secs(30);
/// What containerd's garbage collector never takes.
const ROOT: &str = "containerd.io/gc.root";
/// Whose a view is.
const OWNER: &str = "pintle.dev/view-of";

/// A client of the snapshot service. Clones share the connection.
#[derive(Clone)]
pub struct Snapshots {
    client: SnapshotsClient<Channel>,
    clock: SharedClock,
}

/// What is to be mounted to see a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// `overlay`, `bind`.
    pub kind: String,
    pub source: String,
    pub options: Vec<String>,
}

impl Snapshots {
    /// A client of the containerd at `endpoint`; dials at the first call.
    pub fn new(endpoint: &str, clock: SharedClock) -> Result<Self> {
        Ok(Self { client: SnapshotsClient::new(crate::connect::channel(endpoint)?), clock })
    }

    /// A view of the layers that end in `parent`, kept until its owner's views are removed. Asked for
    /// again it is the same.
    pub async fn view(&self, snapshotter: &str, key: &str, parent: &str, owner: &str) -> Result<Vec<Mount>> {
        let labels = HashMap::from([(ROOT.to_owned(), owner.to_owned()), (OWNER.to_owned(), owner.to_owned())]);
        let (snapshotter, key, parent) = (snapshotter.to_owned(), key.to_owned(), parent.to_owned());
        let again = MountsRequest { snapshotter: snapshotter.clone(), key: key.clone() };
        let request = in_namespace(ViewSnapshotRequest { snapshotter, key, parent, labels });
        let mounts = match self.within_limit(self.client.clone().view(request)).await {
            Ok(made) => made.mounts,
            Err(Error::AlreadyExists(_)) => {
                self.within_limit(self.client.clone().mounts(in_namespace(again))).await?.mounts
            }
            Err(error) => return Err(error),
        };
        let mount = |m: Wire| Mount { kind: m.r#type, source: m.source, options: m.options };
        Ok(mounts.into_iter().map(mount).collect())
    }

    /// Removes the views of an owner.
    pub async fn remove(&self, snapshotter: &str, owner: &str) -> Result<()> {
        let filters = vec![format!("labels.\"{OWNER}\"=={owner}")];
        let request = in_namespace(ListSnapshotsRequest { snapshotter: snapshotter.to_owned(), filters });
        let mut pages = self.within_limit(self.client.clone().list(request)).await?;
        let mut found = Vec::new();
        let read = async {
            while let Some(page) = pages.next().await {
                found.extend(page?.info.into_iter().map(|i| i.name));
            }
            Ok::<_, Error>(())
        };
        self.clock.timeout(LIMIT, read).await.map_err(|_| late())??;
        for key in found {
            let request = in_namespace(RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key });
            match self.within_limit(self.client.clone().remove(request)).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn within_limit<T: Send>(
        &self,
        call: impl Future<Output = std::result::Result<tonic::Response<T>, tonic::Status>> + Send,
    ) -> Result<T> {
        Ok(self.clock.timeout(LIMIT, call).await.map_err(|_| late())??.into_inner())
    }
}

fn late() -> Error {
    Error::DeadlineExceeded("context deadline exceeded".into())
}
