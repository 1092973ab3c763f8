//! What containerd tells beside CRI: events of its tasks, and how far downloads are.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use prost::Message;
use stdx::{ClockExt, SharedClock};
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use crate::containers_v1::GetContainerRequest;
use crate::containers_v1::containers_client::ContainersClient;
use crate::content_v1::ListStatusesRequest;
use crate::content_v1::content_client::ContentClient;
use crate::error::{Error, Result};
use crate::events_v1::events_client::EventsClient;
use crate::events_v1::{Envelope, SubscribeRequest, TaskEvent as Task};
use crate::tasks_v1::KillRequest;
use crate::tasks_v1::tasks_client::TasksClient;

/// The containerd namespace that its CRI plugin works in.
const NAMESPACE: &str = "k8s.io";
const LIMIT: Duration = Duration::from_secs(10);

/// A client of containerd's own services. Clones share the connection.
#[derive(Clone)]
pub struct Containerd {
    events: EventsClient<Channel>,
    containers: ContainersClient<Channel>,
    content: ContentClient<Channel>,
    tasks: TasksClient<Channel>,
    clock: SharedClock,
}

/// What happened to a task. Sandboxes are tasks, too: their id is the container's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskEventKind {
    /// Its first process runs.
    Started,
    /// Its first process ended.
    Exited,
    /// The kernel killed something of it for memory.
    OutOfMemory,
    /// It is gone from the runtime.
    Deleted,
}

/// An event of a container or sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEvent {
    /// The container's or sandbox's id.
    pub container_id: String,
    /// What happened.
    pub kind: TaskEventKind,
}

/// A blob that is being downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// Which blob, as the puller named it (`layer-sha256:…`).
    pub name: String,
    /// Bytes that arrived.
    pub offset: u64,
    /// Bytes expected; 0 while unknown.
    pub total: u64,
}

impl Containerd {
    /// A client of the containerd at `endpoint`; dials at the first call.
    pub fn new(endpoint: &str, clock: SharedClock) -> Result<Self> {
        let channel = crate::connect::channel(endpoint)?;
        Ok(Self {
            events: EventsClient::new(channel.clone()),
            containers: ContainersClient::new(channel.clone()),
            content: ContentClient::new(channel.clone()),
            tasks: TasksClient::new(channel),
            clock,
        })
    }

    /// Task events from now on. Another runtime answers [`Error::Unimplemented`].
    pub async fn task_events(&self) -> Result<TaskEvents> {
        let topics = ["/tasks/start", "/tasks/exit", "/tasks/oom", "/tasks/delete"];
        let filters = topics.iter().map(|topic| format!("namespace=={NAMESPACE},topic==\"{topic}\"")).collect();
        let request = in_namespace(SubscribeRequest { filters });
        // The reply's head comes with the first event, so this call has no deadline of its own.
        Ok(TaskEvents { inner: self.events.clone().subscribe(request).await?.into_inner() })
    }

    /// Whether containerd has a container of this id; a sandbox has one, too, from before its shim is
    /// started until after its removal.
    pub async fn has_container(&self, id: &str) -> Result<bool> {
        let request = in_namespace(GetContainerRequest { id: id.to_owned() });
        match self.within_limit(self.containers.clone().get(request)).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn within_limit<T: Send>(
        &self,
        call: impl Future<Output = std::result::Result<tonic::Response<T>, tonic::Status>> + Send,
    ) -> Result<T> {
        match self.clock.timeout(LIMIT, call).await {
            Ok(reply) => Ok(reply?.into_inner()),
            Err(_) => Err(Error::DeadlineExceeded("context deadline exceeded".into())),
        }
    }

    /// Sends a signal to the first process of a container. One that has ended is not found.
    pub async fn kill(&self, id: &str, signal: u32) -> Result<()> {
        let request = KillRequest { container_id: id.to_owned(), exec_id: String::new(), signal, all: false };
        self.within_limit(self.tasks.clone().kill(in_namespace(request))).await.map(drop)
    }

    /// The downloads under way.
    pub async fn ingests(&self) -> Result<Vec<Ingest>> {
        let request = in_namespace(ListStatusesRequest { filters: Vec::new() });
        let reply = self.within_limit(self.content.clone().list_statuses(request)).await?;
        let size = |n: i64| u64::try_from(n).unwrap_or(0);
        let ingest =
            |s: crate::content_v1::Ingest| Ingest { name: s.r#ref, offset: size(s.offset), total: size(s.total) };
        Ok(reply.statuses.into_iter().map(ingest).collect())
    }
}

pub(crate) fn in_namespace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    request
}

/// A stream of task events; it ends when containerd does.
pub struct TaskEvents {
    inner: tonic::Streaming<Envelope>,
}

impl Stream for TaskEvents {
    type Item = Result<TaskEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match Pin::new(&mut self.inner).poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Some(Err(status.into()))),
                Poll::Ready(Some(Ok(envelope))) => {
                    if let Some(event) = parse(&envelope) {
                        return Poll::Ready(Some(Ok(event)));
                    }
                }
            }
        }
    }
}

/// The event in an envelope; `None` for topics we did not ask for and for exits of mere execs.
fn parse(envelope: &Envelope) -> Option<TaskEvent> {
    let kind = match envelope.topic.as_str() {
        "/tasks/start" => TaskEventKind::Started,
        "/tasks/exit" => TaskEventKind::Exited,
        "/tasks/oom" => TaskEventKind::OutOfMemory,
        "/tasks/delete" => TaskEventKind::Deleted,
        _ => return None,
    };
    let packed = envelope.event.as_ref()?;
    let container_id = match kind {
        TaskEventKind::Exited => {
            let task = Task::decode(packed.value.as_slice()).ok()?;
            if !task.id.is_empty() && task.id != task.container_id {
                return None;
            }
            task.container_id
        }
        _ => FirstField::decode(packed.value.as_slice()).ok()?.container_id,
    };
    (!container_id.is_empty()).then_some(TaskEvent { container_id, kind })
}

/// The events other than exits share only their first field.
#[derive(Clone, PartialEq, Message)]
struct FirstField {
    #[prost(string, tag = "1")]
    container_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events_v1::Packed;

    fn envelope(topic: &str, container_id: &str, id: &str) -> Envelope {
        let task = Task { container_id: container_id.into(), id: id.into() };
        let event = Some(Packed { type_url: "containerd.events.TaskExit".into(), value: task.encode_to_vec() });
        Envelope { timestamp: None, namespace: NAMESPACE.into(), topic: topic.into(), event }
    }

    #[test]
    fn an_exit_of_an_exec_is_no_exit_of_the_container() {
        let exit = TaskEvent { container_id: "c".into(), kind: TaskEventKind::Exited };
        assert_eq!(parse(&envelope("/tasks/exit", "c", "c")), Some(exit));
        assert_eq!(parse(&envelope("/tasks/exit", "c", "exec1")), None);
        assert_eq!(parse(&envelope("/images/create", "c", "c")), None);
        let oom = parse(&envelope("/tasks/oom", "c", ""));
        assert_eq!(oom.map(|e| e.kind), Some(TaskEventKind::OutOfMemory));
    }
}
