//! Who changes tables, as a real kernel tells it, in a network namespace of the test's own.

use std::sync::atomic::{AtomicBool, Ordering};

use namespaces::Own as Apart;
use net::monitor::{Monitor, Own};
use net::nf_tables::{Sender, encode};
use net::ruleset::{Family, Step, Transaction};

/// Set inside the test's own namespace.
const INSIDE: &str = "PINTLE_NET_TEST";

fn nft(text: &str) {
    net::nft::run(text, net::nft::Mode::Apply).expect("taken");
}

/// What waits to be read at the sockets that hear of tables, and how much was lost there.
fn waiting() -> (u64, u64) {
    let table = std::fs::read_to_string("/proc/net/netlink").expect("it is there");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let hears = rows.filter(|row| row.get(1) == Some(&"12") && row.get(3) == Some(&"00000040"));
    hears.fold((0, 0), |(rows, lost), row| {
        let number = |at: usize| row.get(at).and_then(|n| n.parse::<u64>().ok()).expect("a number");
        (rows + number(4), lost + number(8))
    })
}

/// What is lost of our own transactions is nobody's drift; what is lost of somebody else's is, and who comes after it
/// is heard again.
#[test]
#[ignore = "needs root: ./dev test runs it"]
fn our_own_noise_is_no_drift() {
    if !namespaces::is_inside(INSIDE, "our_own_noise_is_no_drift", Apart::Network) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let own = Own::default();
        nft("add table ip ours\nadd set ip ours s { type inet_service; }\nadd table ip theirs\n");
        let mut monitor = Monitor::with_room(own.clone(), 1 << 14).expect("heard");
        let mut sender = Sender::default();
        let mut change = |port: u16| {
            let elements = vec![(port.to_string(), String::new())];
            let declaration = "type inet_service".to_owned();
            let steps = vec![Step::AddElements { set: "s".into(), declaration, elements }];
            let batch = encode(&Transaction { family: Family::Ip, table: "ours".into(), steps }).expect("said");
            sender.send(&batch, &own).expect("sent").expect("taken");
        };
        let mut port = 0;
        // What is lost besides our own: nothing, a transaction, the beginning of one, the end of one, nothing.
        for (round, lost) in ["", "all", "beginning", "end", ""].into_iter().enumerate() {
            // Another table, which is heard of.
            nft(&format!("add set ip theirs heard{round} {{ type inet_service; }}\n"));
            let quiet = async {
                while waiting().0 > 0 {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                heard = monitor.changed(&["ours"]) => panic!("nobody changed ours: {heard:?}"),
                () = quiet => {}
            }
            let before = waiting().1;
            // More than there is room for, in one transaction.
            let much: String =
                (0..400).map(|i| format!("add set ip theirs s{round}-{i} {{ type inet_service; }}\n")).collect();
            match lost {
                "beginning" => nft(&format!("{much}add chain ip ours l{round}\n")),
                "end" => nft(&format!("add chain ip ours l{round}\n{much}")),
                _ => {
                    while waiting().1 < before + 50 {
                        port += 1;
                        change(port);
                    }
                    if lost == "all" {
                        nft("flush set ip ours s\n");
                    }
                }
            }
            assert!(waiting().1 > before, "nothing was lost in round {round}");
            let changed = AtomicBool::new(false);
            let somebody = async {
                while waiting().0 > 0 {
                    tokio::task::yield_now().await;
                }
                changed.store(true, Ordering::Relaxed);
                nft(&format!("add chain ip ours c{round}\n"));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                biased;
                heard = monitor.changed(&["ours"]) => heard.expect("heard"),
                () = somebody => {}
            }
            assert_eq!(changed.load(Ordering::Relaxed), lost.is_empty(), "in round {round}");
        }
    });
}
