//! One question to one server: over UDP from a port and under an id that nobody can guess, and over TCP where
//! the answer is too long.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::io::Errno;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::Question;
use crate::wire::{self, Edns, Message};

/// Datagrams that answer something else before nothing more is waited for: somebody is guessing.
const FORGED: usize = 16;

/// Why a server gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("it cannot be reached: {0}")]
    Io(#[from] std::io::Error),
    #[error("it kept silent")]
    Silent,
    #[error("its answer cannot be read")]
    Damaged,
    #[error("answers to other questions came, more than by chance")]
    Forged,
    #[error("it answered {}", wire::rcode::text(*.0))]
    Code(u16),
}

impl Failure {
    /// The server is not there, or says what it cannot mean: others may know better, also for other names.
    pub fn is_of_the_server(&self) -> bool {
        match self {
            Self::Io(error) => !is_ours(error),
            Self::Silent => true,
            Self::Damaged | Self::Forged | Self::Code(_) => false,
        }
    }
}

/// This host or process has no more sockets, ports or memory: whoever was to be asked may be well.
fn is_ours(error: &std::io::Error) -> bool {
    let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL, Errno::ADDRINUSE];
    error.raw_os_error().is_some_and(|code| ours.iter().any(|errno| errno.raw_os_error() == code))
}

/// How others are asked.
pub struct Exchange {
    pub clock: SharedClock,
    /// Ids come from here: it is the operating system's, and cannot be guessed.
    pub rng: Rng,
    /// How long an answer may take.
    pub patience: Duration,
}

impl Exchange {
    /// Asks once.
    ///
    /// # Errors
    /// There is no answer, or none that can be read.
    pub async fn ask(&self, to: SocketAddr, question: &Question, edns: Option<Edns>) -> Result<Message, Failure> {
        let mut id = [0u8; 2];
        self.rng.fill(&mut id);
        let mut asked = Vec::with_capacity(128);
        wire::ask(u16::from_be_bytes(id), &question.name, question.kind, question.unchecked, edns, &mut asked);
        let both = async {
            let message = datagram(to, &asked).await?;
            if message.truncated { stream(to, &asked).await } else { Ok(message) }
        };
        self.clock.timeout(self.patience, both).await.unwrap_or(Err(Failure::Silent))
    }
}

/// Asks over UDP. The socket is used once: its port is one more number that has to be guessed.
async fn datagram(to: SocketAddr, asked: &[u8]) -> Result<Message, Failure> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // What others send is not even seen.
    socket.connect(to).await?;
    socket.send(asked).await?;
    let mut buffer = [0u8; 4096];
    for _ in 0..FORGED {
        let length = socket.recv(&mut buffer).await?;
        let message = &buffer[..length];
        if wire::question_matches(asked, message) {
            return wire::read(message).map_err(|_| Failure::Damaged);
        }
        // Some that do not understand extensions do not say what they did not understand.
        if wire::is_bare_refusal(asked, message) {
            return Ok(Message { code: wire::rcode::FORMERR, ..Message::default() });
        }
    }
    Err(Failure::Forged)
}

/// Asks over TCP.
async fn stream(to: SocketAddr, asked: &[u8]) -> Result<Message, Failure> {
    let mut stream = TcpStream::connect(to).await?;
    let length = u16::try_from(asked.len()).map_err(|_| Failure::Damaged)?;
    stream.write_all(&[&length.to_be_bytes(), asked].concat()).await?;
    let length = usize::from(stream.read_u16().await?);
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    if !wire::question_matches(asked, &message) {
        return Err(Failure::Forged);
    }
    match wire::read(&message) {
        Ok(message) if !message.truncated => Ok(message),
        _ => Err(Failure::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_host_lacks_is_not_the_servers() {
        let io = |errno: Errno| Failure::Io(errno.into());
        for (failure, want) in [
            (io(Errno::MFILE), false),
            (io(Errno::NFILE), false),
            (io(Errno::NOBUFS), false),
            (io(Errno::ADDRNOTAVAIL), false),
            (io(Errno::CONNREFUSED), true),
            (io(Errno::HOSTUNREACH), true),
            (Failure::Silent, true),
            (Failure::Damaged, false),
            (Failure::Code(wire::rcode::SERVFAIL), false),
        ] {
            assert_eq!(failure.is_of_the_server(), want, "{failure}");
        }
    }
}
