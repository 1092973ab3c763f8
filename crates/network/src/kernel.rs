//! Looking at this machine, and doing what was decided.

use std::io;

use net::rtnl::{self, Rtnl};

use crate::DEVICE;
use crate::plan::{Action, Seen};

/// What is there.
///
/// # Errors
/// When the kernel does not tell.
pub fn look(rtnl: &Rtnl) -> io::Result<Seen> {
    let links = rtnl.links()?;
    let device = links.iter().find(|l| l.name == DEVICE).map(|l| l.index);
    let (neighbours, forwards) = match device {
        Some(device) => (rtnl.neighbours(device)?, rtnl.forwards(device)?),
        None => (Vec::new(), Vec::new()),
    };
    Ok(Seen { links, addresses: rtnl.addresses()?, routes: rtnl.routes()?, neighbours, forwards })
}

/// Does one step. What is gone already need not be taken away.
///
/// # Errors
/// When the kernel refuses.
pub fn apply(rtnl: &Rtnl, action: &Action) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if rtnl::is_gone(&error) => Ok(()),
        other => other,
    };
    match action {
        Action::DeleteDevice => rtnl.delete_link(DEVICE).map(drop),
        Action::AddDevice(device) => rtnl.add_vxlan(device),
        Action::SetMtu { link, mtu } => rtnl.set_mtu(*link, *mtu),
        Action::AddAddress { link, net } => rtnl.add_address(*link, *net),
        Action::DeleteAddress { link, net } => gone(rtnl.delete_address(*link, *net)),
        Action::SetForward(forward) => rtnl.set_forward(forward),
        Action::DeleteForward(forward) => gone(rtnl.delete_forward(forward)),
        Action::SetNeighbour(neighbour) => rtnl.set_neighbour(neighbour),
        Action::DeleteNeighbour(neighbour) => gone(rtnl.delete_neighbour(neighbour)),
        Action::DeleteRoute(route) => gone(rtnl.delete_route(route)),
        Action::ReplaceRoute(route) => rtnl.replace_route(route),
        Action::AddRoute(route) => rtnl.add_route(route),
    }
}
