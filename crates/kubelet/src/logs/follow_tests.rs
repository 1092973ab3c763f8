//! Logs that grow, move and vanish while they are read.

use super::*;
use proptest::prelude::*;
use std::io::Write;
use std::path::PathBuf;
use stdx::clock::RealClock;
use tokio::sync::oneshot;

fn line(text: &str) -> String {
    format!("2026-01-01T00:00:00Z stdout F {text}\n")
}

struct Log {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Log {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("pod/c")).expect("made");
        let path = dir.path().join("pod/c/0.log");
        std::fs::write(&path, text).expect("written");
        Self { dir, path }
    }

    fn append(&self, text: &str) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.path).expect("opened");
        file.write_all(text.as_bytes()).expect("written");
    }

    fn rotate(&self, stamp: &str) {
        std::fs::rename(&self.path, self.path.with_extension(format!("log.{stamp}"))).expect("moved");
    }

    fn open(&self, options: &Options) -> io::Result<Reader> {
        Reader::open(self.dir.path(), &self.path, options)
    }

    /// All of it by the synchronous half.
    fn read(&self, options: &Options) -> String {
        let mut reader = self.open(options).expect("opened");
        let mut out = Vec::new();
        while reader.step(&mut out).expect("read") == Step::More {}
        String::from_utf8(out).expect("text")
    }
}

#[test]
fn options() {
    let log = Log::new(&[line("a"), line("b"), line("c"), "2026-01-01T00:00:00Z stdout F no end".into()].concat());
    let tail = |lines| Options { tail: Some(lines), ..Options::default() };
    assert_eq!(log.read(&Options::default()), "a\nb\nc\nno end\n");
    assert_eq!(log.read(&tail(2)), "c\nno end\n");
    assert_eq!(log.read(&tail(0)), "");
    assert_eq!(log.read(&Options { limit: Some(3), ..Options::default() }), "a\nb");
    assert_eq!(log.read(&Options { limit: Some(1), ..tail(2) }), "c");
}

#[test]
fn only_what_was_there_is_read() {
    let log = Log::new(&line("a"));
    let mut reader = log.open(&Options::default()).expect("opened");
    log.append(&line("later"));
    let mut out = Vec::new();
    while reader.step(&mut out).expect("read") == Step::More {}
    assert_eq!(out, b"a\n");
}

#[test]
fn long_lines_are_cut() {
    let long = "x".repeat(3 * MAX_LINE);
    let log = Log::new(&[line(&long), line("next")].concat());
    let text = log.read(&Options::default());
    assert!(text.len() < 2 * MAX_LINE, "{}", text.len());
    assert!(text.ends_with("x\nnext\n"));
}

#[test]
fn no_link_leads_to_another_file() {
    let log = Log::new(&line("a"));
    let secret = log.dir.path().join("secret");
    std::fs::write(&secret, line("secret")).expect("written");
    let root = log.dir.path().join("pod");
    let open = |path: &Path| Reader::open(&root, path, &Options::default()).map(|_| ());
    open(&root.join("c/0.log")).expect("its own");
    std::os::unix::fs::symlink(&secret, root.join("c/1.log")).expect("linked");
    std::os::unix::fs::symlink(log.dir.path(), root.join("up")).expect("linked");
    for bad in [secret.clone(), root.join("c/1.log"), root.join("up/secret"), root.join("c"), root.join("../secret")] {
        assert!(open(&bad).is_err(), "{}", bad.display());
    }
    // The same for what a log is rotated to.
    let mut reader =
        Reader::open(&root, &root.join("c/0.log"), &Options { follow: true, ..Options::default() }).expect("opened");
    std::fs::remove_file(root.join("c/0.log")).expect("removed");
    std::os::unix::fs::symlink(&secret, root.join("c/0.log")).expect("linked");
    let mut out = Vec::new();
    let end = loop {
        match reader.step(&mut out) {
            Ok(Step::More) => {}
            end => break end,
        }
    };
    assert!(end.is_err());
    assert_eq!(out, b"a\n");
}

#[test]
fn no_rotation_is_missed() {
    let log = Log::new(&line("1"));
    let mut reader = log.open(&Options { follow: true, ..Options::default() }).expect("opened");
    let drain = |reader: &mut Reader| {
        let mut out = Vec::new();
        while reader.step(&mut out).expect("read") == Step::More {}
        String::from_utf8(out).expect("text")
    };
    assert_eq!(drain(&mut reader), "1\n");
    // Twice while nobody looked; the last words of each count.
    log.append(&line("2"));
    log.rotate("20260101-000001");
    log.append(&line("3"));
    log.rotate("20260101-000002");
    assert_eq!(drain(&mut reader), "2\n3\n");
    log.append(&line("4"));
    assert_eq!(drain(&mut reader), "4\n");
    // What it was reading is removed meanwhile.
    log.rotate("20260101-000003");
    std::fs::remove_file(log.path.with_extension("log.20260101-000003")).expect("removed");
    for old in ["000001", "000002"] {
        std::fs::remove_file(log.path.with_extension(format!("log.20260101-{old}"))).expect("removed");
    }
    log.append(&line("5"));
    assert_eq!(drain(&mut reader), "5\n");
    // Emptied in place.
    std::fs::write(&log.path, "").expect("written");
    assert_eq!(drain(&mut reader), "");
    log.append(&line("6"));
    assert_eq!(drain(&mut reader), "6\n");
}

#[test]
fn last_words_beside_a_new_file_are_not_missed() {
    let log = Log::new(&line("1"));
    let mut reader = log.open(&Options { follow: true, ..Options::default() }).expect("opened");
    let drain = |reader: &mut Reader| {
        let mut out = Vec::new();
        while reader.step(&mut out).expect("read") == Step::More {}
        String::from_utf8(out).expect("text")
    };
    let old = log.path.with_extension("log.20260101-000001");
    let last_words = |text: &str| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&old).expect("opened");
        file.write_all(line(text).as_bytes()).expect("written");
    };
    // The runtime has made the new file, and what the container says still goes to the old one.
    log.rotate("20260101-000001");
    std::fs::write(&log.path, "").expect("written");
    assert_eq!(drain(&mut reader), "1\n");
    last_words("2");
    assert_eq!(drain(&mut reader), "2\n");
    last_words("3");
    log.append(&line("4"));
    assert_eq!(drain(&mut reader), "3\n4\n");
}

struct Followed {
    pieces: mpsc::Receiver<Bytes>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

fn follow(log: &Log, options: Options) -> Followed {
    let reader = log.open(&Options { follow: true, ..options }).expect("opened");
    let (tx, pieces) = mpsc::channel(2);
    let (stop, stopped) = oneshot::channel();
    let clock = RealClock::shared();
    let task = tokio::spawn(async move { send(reader, async move { drop(stopped.await) }, &clock, tx).await });
    Followed { pieces, stop, task }
}

async fn until(pieces: &mut mpsc::Receiver<Bytes>, want: &str) {
    let mut got = String::new();
    while got != want {
        assert!(want.starts_with(&got), "{got:?} is not the begin of {want:?}");
        let piece = pieces.recv().await.expect("more");
        got.push_str(&String::from_utf8_lossy(&piece));
    }
}

#[tokio::test]
async fn followed_until_the_container_ends() {
    let log = Log::new(&[line("0"), line("1")].concat());
    let mut followed = follow(&log, Options { tail: Some(1), ..Options::default() });
    until(&mut followed.pieces, "1\n").await;
    log.append("2026-01-01T00:00:00Z stdout P half ");
    log.append("\n2026-01-01T00:00:00Z stdout F a line\n");
    until(&mut followed.pieces, "half a line\n").await;
    log.rotate("20260101-000001");
    log.append(&line("new file"));
    until(&mut followed.pieces, "new file\n").await;
    log.append(&line("last words"));
    followed.stop.send(()).expect("listening");
    until(&mut followed.pieces, "last words\n").await;
    assert_eq!(followed.pieces.recv().await, None);
    followed.task.await.expect("ended").expect("read");
}

#[tokio::test]
async fn who_reads_slowly_is_waited_for() {
    let text: String = (0..40_000).map(|n| line(&format!("{n} {}", "x".repeat(60)))).collect();
    let log = Log::new(&text);
    let mut followed = follow(&log, Options::default());
    // Nothing is read ahead of what the channel holds.
    while followed.pieces.len() < followed.pieces.max_capacity() {
        tokio::task::yield_now().await;
    }
    assert!(!followed.task.is_finished());
    let mut got = Vec::new();
    let mut largest = 0;
    followed.stop.send(()).expect("listening");
    while let Some(piece) = followed.pieces.recv().await {
        largest = largest.max(piece.len());
        got.extend_from_slice(&piece);
    }
    assert!(largest <= 2 * CHUNK, "{largest} bytes in one piece");
    assert_eq!(String::from_utf8(got).expect("text"), log.read(&Options::default()));
    followed.task.await.expect("ended").expect("read");
}

#[tokio::test]
async fn a_reader_who_leaves_ends_it() {
    let log = Log::new(&line("1"));
    let mut followed = follow(&log, Options::default());
    until(&mut followed.pieces, "1\n").await;
    drop(followed.pieces);
    followed.task.await.expect("ended").expect("read");
    // And enough bytes do.
    let mut followed = follow(&log, Options { limit: Some(3), ..Options::default() });
    until(&mut followed.pieces, "1\n").await;
    log.append(&line("2345"));
    until(&mut followed.pieces, "2").await;
    assert_eq!(followed.pieces.recv().await, None);
    followed.task.await.expect("ended").expect("read");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the writer's pieces and rotations fall, a follower sees every line once, in order.
    #[test]
    fn a_follower_sees_every_line_once(acts in proptest::collection::vec((0u8..6, 1usize..60), 1..40)) {
        let log = Log::new("");
        let mut reader = log.open(&Options { follow: true, ..Options::default() }).expect("opened");
        let (mut written, mut out, mut stamp, mut rest) = (String::new(), Vec::new(), 0, String::new());
        let mut number = 0;
        for (act, size) in acts {
            match act {
                // A rotation falls between whole lines, as the runtime's do.
                0 => {
                    log.append(&std::mem::take(&mut rest));
                    log.rotate(&format!("20260101-{stamp:06}"));
                    log.append("");
                    stamp += 1;
                }
                1 => while reader.step(&mut out).expect("read") == Step::More {},
                2 => drop(reader.step(&mut out).expect("read")),
                _ => {
                    let text = format!("{number} {}", "y".repeat(size));
                    number += 1;
                    written.push_str(&text);
                    written.push('\n');
                    rest.push_str(&line(&text));
                    let cut = size.min(rest.len());
                    log.append(&rest.drain(..cut).collect::<String>());
                }
            }
        }
        log.append(&rest);
        while reader.step(&mut out).expect("read") == Step::More {}
        prop_assert_eq!(String::from_utf8(out).expect("text"), written);
    }
}
