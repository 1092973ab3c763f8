//! Datagrams. What can be answered at once is answered before the next one is looked at: there is no queue that
//! could grow, and no task for what takes microseconds. A message that brings the code below to its end is lost,
//! and no other with it.

use std::sync::Arc;

use stdx::shutdown::Stage;
use tokio::net::UdpSocket;

use super::{Front, Taken};
use crate::metrics::Way;

/// Datagrams after which others get their turn.
const ROUND: usize = 64;
/// Longer questions are cut, and then cannot be read: FORMERR.
const LONGEST: usize = 4096;

/// Serves until the stage stops.
pub async fn serve(socket: Arc<UdpSocket>, front: Arc<Front>, stage: &Stage) {
    tokio::select! {
        () = run(&socket, &front, stage) => {}
        () = stage.stopped() => {}
    }
}

async fn run(socket: &Arc<UdpSocket>, front: &Arc<Front>, stage: &Stage) {
    let (mut buffer, mut out) = (vec![0u8; LONGEST], Vec::with_capacity(LONGEST));
    loop {
        if let Err(error) = socket.readable().await {
            tracing::warn!(%error, "the socket for questions");
            return;
        }
        for _ in 0..ROUND {
            let (length, from) = match socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // Somebody who was answered is gone: the kernel tells it here.
                Err(_) => continue,
            };
            let way = Way { tcp: false, v6: from.is_ipv6() };
            match front.hear((from.ip(), way), &buffer[..length], None, &mut out) {
                Taken::Dropped => {}
                Taken::Answered => {
                    // A full queue of the kernel loses answers; whoever needs one asks again.
                    let _ = socket.try_send_to(&out, from);
                }
                Taken::Later(later) => {
                    let (socket, front) = (socket.clone(), front.clone());
                    stage.run(async move {
                        let mut out = Vec::with_capacity(512);
                        front.finish(later, &mut out).await;
                        let _ = socket.send_to(&out, from).await;
                    });
                }
            }
        }
        tokio::task::yield_now().await;
    }
}
