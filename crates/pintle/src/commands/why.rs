//! `pintle why KIND/NAME`: what holds a pod, or the pods below an object, up, and what happened so far.

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use host::process::ProcessId;
use stdx::SharedClock;

use crate::VERSION;
use crate::roots::Roots;

/// Say what an object waits for, and why.
#[derive(Args, Debug)]
pub struct Why {
    /// What to explain: pod/NAME, deployment/NAME, service/NAME, node/NAME …
    object: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    roots: Roots,
    /// The kubeconfig to use; that of the cluster on this machine unless set.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<std::path::PathBuf>,
}

/// Runs the command.
pub async fn run(args: Why, clock: SharedClock) -> Result<()> {
    let (kind, name) = match args.object.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => (kind, name),
        _ => bail!("cannot explain {:?}; say pod/NAME, deployment/NAME or the like", args.object),
    };
    let path = args.kubeconfig.clone().unwrap_or_else(|| args.roots.layout().admin_kubeconfig());
    if args.kubeconfig.is_none() && !path.exists() {
        bail!("there is no cluster on this machine; pintle up starts one, --kubeconfig names another");
    }
    let connection = client::kubeconfig::Connection::load(&path, None).context("the kubeconfig")?;
    let client = client::Client::https(&connection, &format!("pintle/{VERSION}"), &clock)?;
    match explain::why(&client, &args.namespace, kind, name, clock.wall()).await {
        Ok(text) => {
            print!("{text}");
            Ok(())
        }
        Err(explain::Error::Client(client::Error::Transport(error @ transport::Error::Connect(_)))) => {
            let started = ProcessId::load_alive(&args.roots.layout().pid()).is_some();
            if args.kubeconfig.is_none() && !started {
                bail!("the cluster does not run; pintle up{} starts it", args.roots.flags());
            }
            Err(anyhow!(error).context(format!("the API server {} cannot be reached", connection.server)))
        }
        Err(error) => Err(error.into()),
    }
}
