//! Flags, signals and wiring: every component as a subcommand, and `up`, which runs them together.
//! Nothing is decided here.

mod cluster;
mod commands;
mod logging;
mod progress;
mod roots;
mod signals;

use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stdx::clock::RealClock;

/// A write makes some thousand small allocations, in which glibc's own allocator takes a fifth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The version reported to clients.
pub const VERSION: &str = concat!("v1.37.1+pintle.", env!("CARGO_PKG_VERSION"));

/// Kubernetes in one small binary.
#[derive(Parser, Debug)]
#[command(name = "pintle", version = VERSION, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Up(Box<commands::up::Up>),
    Down(commands::down::Down),
    Reset(commands::reset::Reset),
    Why(commands::why::Why),
    Snapshot(commands::snapshot::Snapshot),
    #[command(name = "kube-apiserver")]
    ApiServer(Box<commands::kube_apiserver::KubeApiServer>),
    #[command(name = "kube-controller-manager")]
    ControllerManager(commands::kube_controller_manager::KubeControllerManager),
    #[command(name = "kube-scheduler")]
    Scheduler(commands::kube_scheduler::KubeScheduler),
    Kubelet(Box<commands::kubelet::Kubelet>),
    #[command(name = "kube-proxy")]
    Proxy(commands::kube_proxy::KubeProxy),
    Dns(Box<commands::dns::Dns>),
    NetworkPolicy(commands::network_policy::NetworkPolicy),
    Network(commands::network::Network),
    /// Print the version.
    Version,
}

fn main() -> std::process::ExitCode {
    if let Some(code) = plugin() {
        return code;
    }
    let cli = Cli::parse();
    raise_descriptors();
    match run(cli.command) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pintle: {}", told(error.chain().map(ToString::to_string)));
            std::process::ExitCode::FAILURE
        }
    }
}

/// The answer to the container runtime, when it executes this program under a plugin's name. A pod's start
/// waits for it: nothing else has begun.
#[allow(clippy::disallowed_methods, reason = "a plugin's call is in its environment")]
fn plugin() -> Option<std::process::ExitCode> {
    let called = std::env::args_os().next()?;
    let name = std::path::Path::new(&called).file_name()?.to_str()?;
    let name = cni::NAMES.into_iter().find(|plugin| *plugin == name)?;
    let now = u64::try_from(RealClock::shared().wall().as_nanosecond()).unwrap_or_default();
    let variable = |variable: &str| std::env::var(variable).ok();
    Some(cni::run(name, variable, std::io::stdin().lock(), &mut std::io::stdout().lock(), now).into())
}

/// As many descriptors as this process may have: a shell gives programs 1024 unless they ask for more, and a
/// stream into a pod needs four. Where it may have no more, it goes on with what it has.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        eprintln!("pintle: no more than {:?} files can be open at once: {error}", limit.current);
    }
}

/// Causes in one line; what an error already says of its cause is not said twice.
fn told(causes: impl Iterator<Item = String>) -> String {
    causes.fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.ends_with(&cause) => text,
        said => format!("{said}: {cause}"),
    })
}

fn run(command: Command) -> anyhow::Result<()> {
    // `up` in the background starts another process, before any thread exists in this one.
    let clock = RealClock::shared();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match command {
        Command::Up(args) => commands::up::run(*args, clock),
        Command::Down(args) => runtime()?.block_on(commands::down::run(args, clock)),
        Command::Reset(args) => runtime()?.block_on(commands::reset::run(args, clock)),
        Command::Why(args) => runtime()?.block_on(commands::why::run(args, clock)),
        Command::Snapshot(args) => commands::snapshot::run(&args),
        Command::ApiServer(args) => runtime()?.block_on(commands::kube_apiserver::run(*args, clock)),
        Command::ControllerManager(args) => runtime()?.block_on(commands::kube_controller_manager::run(args, clock)),
        Command::Scheduler(args) => runtime()?.block_on(commands::kube_scheduler::run(args, clock)),
        Command::Kubelet(args) => runtime()?.block_on(commands::kubelet::run(*args, clock)),
        Command::Proxy(args) => runtime()?.block_on(commands::kube_proxy::run(args, clock)),
        Command::Dns(args) => runtime()?.block_on(commands::dns::run(*args, clock)),
        Command::NetworkPolicy(args) => runtime()?.block_on(commands::network_policy::run(args, clock)),
        Command::Network(args) => runtime()?.block_on(commands::network::run(args, clock)),
        Command::Version => {
            println!("{VERSION}");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::told;

    #[test]
    fn a_cause_is_told_once() {
        let causes = ["the kubeconfig", "/a: not found", "not found"].map(str::to_owned);
        assert_eq!(told(causes.into_iter()), "the kubeconfig: /a: not found");
    }
}
