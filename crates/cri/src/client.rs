//! One method per call of CRI v1, each with its deadline.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use stdx::{ClockExt, SharedClock};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::count::Counted;
use crate::error::{Error, Result};
use crate::v1;
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;

/// A reply larger than this is refused: a list of every container of a full node fits many times.
const MAX_REPLY: usize = 16 << 20;

/// How long calls may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Questions and small changes.
    pub short: Duration,
    /// Whatever starts or stops processes, on top of the time the caller grants.
    pub long: Duration,
    /// A sandbox: network plugins are slow at times.
    pub sandbox: Duration,
    /// An image, however large.
    pub pull: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            short: Duration::from_secs(10),
            long: Duration::from_secs(120),
            sandbox: Duration::from_secs(240),
            pull: Duration::from_secs(3600),
        }
    }
}

/// A client of a container runtime. Clones share the connection.
#[derive(Clone)]
pub struct Client {
    runtime: RuntimeServiceClient<Counted<Channel>>,
    images: ImageServiceClient<Counted<Channel>>,
    clock: SharedClock,
    limits: Limits,
}

impl Client {
    /// A client of the runtime at `endpoint`; dials at the first call.
    pub fn new(endpoint: &str, clock: SharedClock) -> Result<Self> {
        Self::counted(endpoint, clock, |_, _, _| {})
    }

    /// The same, whose calls are told: the operation, how long it took, and whether it failed.
    pub fn counted(
        endpoint: &str,
        clock: SharedClock,
        told: impl Fn(&str, Duration, bool) + Send + Sync + 'static,
    ) -> Result<Self> {
        let channel = Counted::new(crate::connect::channel(endpoint)?, clock.clone(), told);
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_REPLY),
            images: ImageServiceClient::new(channel).max_decoding_message_size(MAX_REPLY),
            clock,
            limits: Limits::default(),
        })
    }

    /// The same client with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Boxes the call at once: the futures of the generated client are tens of kilobytes.
    fn within<T: Send>(
        &self,
        limit: Duration,
        call: impl Future<Output = std::result::Result<Response<T>, Status>> + Send,
    ) -> impl Future<Output = Result<T>> + Send {
        let bounded = self.clock.timeout(limit, Box::pin(call));
        async move {
            match bounded.await {
                Ok(reply) => Ok(reply?.into_inner()),
                Err(_) => Err(Error::DeadlineExceeded("context deadline exceeded".into())),
            }
        }
    }

    // ---- the runtime itself

    /// Who answers.
    pub async fn version(&self) -> Result<v1::VersionResponse> {
        let request = v1::VersionRequest { version: "0.1.0".into() };
        self.within(self.limits.short, self.runtime.clone().version(request)).await
    }

    /// Whether the runtime and its network are ready.
    pub async fn status(&self) -> Result<v1::StatusResponse> {
        self.within(self.limits.short, self.runtime.clone().status(v1::StatusRequest { verbose: false })).await
    }

    /// The same with what this runtime tells beside it, by its own names.
    pub async fn status_in_full(&self) -> Result<v1::StatusResponse> {
        self.within(self.limits.short, self.runtime.clone().status(v1::StatusRequest { verbose: true })).await
    }

    /// The cgroup driver, where the runtime tells.
    pub async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        self.within(self.limits.short, self.runtime.clone().runtime_config(v1::RuntimeConfigRequest {})).await
    }

    // ---- sandboxes

    /// Creates and starts a sandbox; gives its id.
    pub async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.into() };
        let reply = self.within(self.limits.sandbox, self.runtime.clone().run_pod_sandbox(request)).await?;
        Ok(reply.pod_sandbox_id)
    }

    /// Kills what runs in a sandbox and takes its network down; stopping twice is fine.
    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        self.within(self.limits.sandbox, self.runtime.clone().stop_pod_sandbox(request)).await.map(drop)
    }

    /// Removes a stopped sandbox with its containers; removing twice is fine.
    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        self.within(self.limits.long, self.runtime.clone().remove_pod_sandbox(request)).await.map(drop)
    }

    /// A sandbox with its addresses.
    pub async fn pod_sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false };
        let reply = self.within(self.limits.short, self.runtime.clone().pod_sandbox_status(request)).await?;
        reply.status.ok_or_else(|| Error::NotFound(format!("sandbox {id:?} has no status")))
    }

    /// The same with what this runtime tells beside it, by its own names.
    pub async fn pod_sandbox_status_in_full(&self, id: &str) -> Result<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
        self.within(self.limits.short, self.runtime.clone().pod_sandbox_status(request)).await
    }

    /// The sandboxes that match.
    pub async fn list_pod_sandbox(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<v1::PodSandbox>> {
        let request = v1::ListPodSandboxRequest { filter };
        Ok(self.within(self.limits.short, self.runtime.clone().list_pod_sandbox(request)).await?.items)
    }

    // ---- containers

    /// Creates a container in a sandbox; gives its id.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self.within(self.limits.long, self.runtime.clone().create_container(request)).await?.container_id)
    }

    /// Starts a created container.
    pub async fn start_container(&self, id: &str) -> Result<()> {
        let request = v1::StartContainerRequest { container_id: id.into() };
        self.within(self.limits.long, self.runtime.clone().start_container(request)).await.map(drop)
    }

    /// Asks a container to end, and kills it after `grace` (in whole seconds, rounded up).
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let timeout = i64::try_from(whole_seconds(grace)).unwrap_or(i64::MAX);
        let request = v1::StopContainerRequest { container_id: id.into(), timeout };
        let limit = self.limits.long.saturating_add(grace);
        self.within(limit, self.runtime.clone().stop_container(request)).await.map(drop)
    }

    /// Removes a container; removing twice is fine.
    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = v1::RemoveContainerRequest { container_id: id.into() };
        self.within(self.limits.long, self.runtime.clone().remove_container(request)).await.map(drop)
    }

    /// The containers that match.
    pub async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        let request = v1::ListContainersRequest { filter };
        Ok(self.within(self.limits.short, self.runtime.clone().list_containers(request)).await?.containers)
    }

    /// One container in full.
    pub async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus> {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let reply = self.within(self.limits.short, self.runtime.clone().container_status(request)).await?;
        reply.status.ok_or_else(|| Error::NotFound(format!("container {id:?} has no status")))
    }

    /// Changes the limits of a running container.
    pub async fn update_container_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.into(),
            linux: Some(linux),
            annotations: Default::default(),
        };
        self.within(self.limits.short, self.runtime.clone().update_container_resources(request)).await.map(drop)
    }

    /// Tells what a sandbox's containers have together. `Unimplemented` by older runtimes.
    pub async fn update_pod_sandbox_resources(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<()> {
        let request =
            v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id: id.into(), overhead: None, resources: Some(linux) };
        self.within(self.limits.short, self.runtime.clone().update_pod_sandbox_resources(request)).await.map(drop)
    }

    /// Makes the runtime open a container's log anew, after it was moved away.
    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = v1::ReopenContainerLogRequest { container_id: id.into() };
        self.within(self.limits.short, self.runtime.clone().reopen_container_log(request)).await.map(drop)
    }

    /// Runs a command in a container and waits for it, at most `timeout` (zero: the call's own limit).
    pub async fn exec_sync(&self, id: &str, cmd: &[String], timeout: Duration) -> Result<v1::ExecSyncResponse> {
        let seconds = i64::try_from(timeout.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX);
        let request = v1::ExecSyncRequest { container_id: id.into(), cmd: cmd.to_vec(), timeout: seconds };
        let limit = self.limits.long.saturating_add(timeout);
        self.within(limit, self.runtime.clone().exec_sync(request)).await
    }

    /// Prepares a stream; gives the URL of the runtime's streaming server.
    pub async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        Ok(self.within(self.limits.short, self.runtime.clone().exec(request)).await?.url)
    }

    /// Prepares a stream to what already runs.
    pub async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        Ok(self.within(self.limits.short, self.runtime.clone().attach(request)).await?.url)
    }

    /// Prepares port forwarding into a sandbox.
    pub async fn port_forward(&self, sandbox: &str, ports: Vec<i32>) -> Result<String> {
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.into(), port: ports };
        Ok(self.within(self.limits.short, self.runtime.clone().port_forward(request)).await?.url)
    }

    /// What the containers that match use.
    pub async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>> {
        let request = v1::ListContainerStatsRequest { filter };
        Ok(self.within(self.limits.short, self.runtime.clone().list_container_stats(request)).await?.stats)
    }

    /// Writes the state of a container's processes to a file; without a time-out the usual one holds.
    pub async fn checkpoint_container(&self, id: &str, location: &str, timeout: i64) -> Result<()> {
        let granted = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
        let request = v1::CheckpointContainerRequest { container_id: id.into(), location: location.into(), timeout };
        let limit = self.limits.long + granted.min(Duration::from_secs(3600));
        self.within(limit, self.runtime.clone().checkpoint_container(request)).await.map(drop)
    }

    /// The runtime's events from now on, where it has them. No deadline: the reply's head may come
    /// with the first event only.
    pub async fn container_events(&self) -> Result<tonic::Streaming<v1::ContainerEventResponse>> {
        let reply = Box::pin(self.runtime.clone().get_container_events(v1::GetEventsRequest {})).await?;
        Ok(reply.into_inner())
    }

    // ---- images

    /// Every image the runtime has.
    pub async fn list_images(&self) -> Result<Vec<v1::Image>> {
        let request = v1::ListImagesRequest { filter: None };
        Ok(self.within(self.limits.short, self.images.clone().list_images(request)).await?.images)
    }

    /// An image by name or id; `None` when it is not there.
    pub async fn image_status(&self, image: &str) -> Result<Option<v1::Image>> {
        let request = v1::ImageStatusRequest { image: Some(spec(image)), verbose: false };
        Ok(self.within(self.limits.short, self.images.clone().image_status(request)).await?.image)
    }

    /// What the runtime tells of an image beyond the protocol: texts of its own, by name.
    pub async fn image_details(&self, image: &str) -> Result<HashMap<String, String>> {
        let request = v1::ImageStatusRequest { image: Some(spec(image)), verbose: true };
        Ok(self.within(self.limits.short, self.images.clone().image_status(request)).await?.info)
    }

    /// What the runtime tells of itself beyond the protocol, likewise.
    pub async fn details(&self) -> Result<HashMap<String, String>> {
        let request = v1::StatusRequest { verbose: true };
        Ok(self.within(self.limits.short, self.runtime.clone().status(request)).await?.info)
    }

    /// Fetches an image; gives the reference to create containers with.
    pub async fn pull_image(
        &self,
        image: &str,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let request = v1::PullImageRequest { image: Some(spec(image)), auth, sandbox_config };
        Ok(self.within(self.limits.pull, self.images.clone().pull_image(request)).await?.image_ref)
    }

    /// Removes an image; removing twice is fine.
    pub async fn remove_image(&self, image: &str) -> Result<()> {
        let request = v1::RemoveImageRequest { image: Some(spec(image)) };
        self.within(self.limits.long, self.images.clone().remove_image(request)).await.map(drop)
    }

    /// How full the file systems with the images are.
    pub async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        let request = Request::new(v1::ImageFsInfoRequest {});
        self.within(self.limits.short, self.images.clone().image_fs_info(request)).await
    }
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), user_specified_image: image.into(), ..Default::default() }
}

/// A grace as the interface counts it. A part of a second is a second: none at all means to be killed without being
/// asked.
pub fn whole_seconds(grace: Duration) -> u64 {
    grace.as_secs().saturating_add(u64::from(grace.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_second_is_not_nothing() {
        let of = |millis| whole_seconds(Duration::from_millis(millis));
        assert_eq!([0, 1, 950, 1000, 1001, 29_940].map(of), [0, 1, 1, 1, 2, 30]);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }
}
