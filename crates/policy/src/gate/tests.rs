//! Questions and answers over a real socket.

use jiff::Timestamp;
use stdx::clock::ManualClock;
use stdx::metrics::Registry;

use super::*;

/// Answers at once, or keeps everybody waiting.
struct Table {
    claims: Mutex<Claims>,
    seen: Mutex<Vec<(Key, bool)>>,
    kept: Mutex<Option<Vec<Waiter>>>,
}

impl Desk for Table {
    fn claims(&self) -> &Mutex<Claims> {
        &self.claims
    }

    fn look(&self, key: Key, waiter: Option<Waiter>) {
        self.seen.lock().push((key, waiter.is_some()));
        let Some(waiter) = waiter else { return };
        match &mut *self.kept.lock() {
            Some(kept) => kept.push(waiter),
            None => waiter.answer.send(Ok(())).expect("somebody waits"),
        }
    }

    fn is_full(&self) {
        self.seen.lock().push((Key::new("", "full"), false));
    }
}

struct Open {
    desk: Arc<Table>,
    clock: Arc<ManualClock>,
    stage: Stage,
    folder: tempfile::TempDir,
}

fn open() -> Open {
    let folder = tempfile::tempdir().expect("a folder");
    let desk = Arc::new(Table { claims: Default::default(), seen: Default::default(), kept: Mutex::new(None) });
    let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
    let (shared, stage): (SharedClock, _) = (clock.clone(), Stage::new());
    let path = folder.path().join("gate.sock");
    // What a killed process left is no reason not to serve.
    std::fs::write(&path, "").expect("written");
    let metrics = Arc::new(Metrics::new(&Registry::default()));
    serve(bind(&path).expect("bound"), desk.clone(), metrics, &shared, &stage);
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    Open { desk, clock, stage, folder }
}

async fn ask(open: &Open, text: &str) -> String {
    let mut stream = UnixStream::connect(open.folder.path().join("gate.sock")).await.expect("connected");
    stream.write_all(text.as_bytes()).await.expect("written");
    stream.shutdown().await.expect("ended");
    let mut out = String::new();
    // What is cut off in the middle of being sent says nothing.
    let _ = stream.read_to_string(&mut out).await;
    out
}

const ADD: &str =
    r#"{"op":"add","containerID":"c1","namespace":"n","name":"p","uid":"u","addresses":["10.0.0.1","fd00::1"]}"#;

#[tokio::test]
async fn an_address_is_known_from_add_to_del() {
    let open = open();
    assert_eq!(ask(&open, &format!("{ADD}\n")).await, "{\"ok\":true}\n");
    let key = Key::new("n", "p");
    let known = |uid: &str| open.desk.claims.lock().of(&key, |own| own == uid).map(|(_, addresses)| addresses.len());
    let has = || open.desk.claims.lock().uids(&key).next().is_some();
    assert_eq!((known("u"), known("another"), has()), (Some(2), None, true));
    assert_eq!(
        ask(&open, "{\"op\":\"del\",\"containerID\":\"c1\",\"namespace\":\"n\",\"name\":\"p\"}\n").await,
        "{\"ok\":true}\n"
    );
    assert_eq!((known("u"), has()), (None, false));
    assert_eq!(*open.desk.seen.lock(), [(key.clone(), true), (key, false)]);
    open.stage.stop();
}

#[tokio::test]
async fn the_last_sandbox_of_a_pod_counts() {
    let mut claims = Claims::default();
    let record = |container: &str, address: &str| Record {
        container: container.into(),
        namespace: "n".into(),
        name: "p".into(),
        uid: "u".into(),
        addresses: vec![address.parse().expect("an address")],
    };
    let key = Key::new("n", "p");
    claims.add(record("new", "10.0.0.2"));
    claims.add(record("newer", "10.0.0.3"));
    let last = |claims: &Claims| claims.of(&key, |own| own == "u").map(|(_, a)| a[0].to_string());
    assert_eq!(last(&claims).as_deref(), Some("10.0.0.3"));
    claims.remove("new");
    assert_eq!(last(&claims).as_deref(), Some("10.0.0.3"));
    claims.remove("newer");
    assert_eq!(last(&claims), None);
}

#[tokio::test]
async fn what_is_no_question_is_answered() {
    let open = open();
    let long = format!("{}{}\n", ADD.trim_end_matches('}'), " ".repeat(20_000));
    for (text, want) in [
        ("\n", "{\"error\":\"the question cannot be read"),
        ("{\"op\":\"add\"}\n", "{\"error\":\"the question cannot be read"),
        ("{\"op\":\"fly\",\"containerID\":\"c\"}\n", "{\"error\":\"the question cannot be read"),
        (
            "{\"op\":\"add\",\"containerID\":\"c\",\"namespace\":\"n\",\"name\":\"p\"}\n",
            "{\"error\":\"which pod n/p it is, is not told",
        ),
        (
            "{\"op\":\"add\",\"containerID\":\"c\",\"namespace\":\"n\",\"name\":\"p\",\"uid\":\"u\"}\n",
            "{\"error\":\"a sandbox with 1 to 16",
        ),
        (ADD, "{\"error\":\"the question has no end"),
        (&long, "{\"error\":\"the question has no end"),
        ("", ""),
    ] {
        let answer = ask(&open, text).await;
        // Of an answer before its question was read whole the kernel may tell nothing.
        let is_lost = text.len() > 16 << 10 && answer.is_empty();
        assert!(answer.starts_with(want) || is_lost, "{text:.80}: {answer}");
    }
    assert!(open.desk.seen.lock().is_empty());
    open.stage.stop();
}

#[tokio::test]
async fn who_asks_before_it_is_served_waits() {
    let open = open();
    open.stage.stop();
    let path = open.folder.path().join("gate.sock");
    // Another process takes over: there is a socket at any time, and nobody is turned away.
    let listener = bind(&path).expect("bound");
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(open.folder.path()).expect("a folder").count(), 1);
    let mut stream = UnixStream::connect(&path).await.expect("connected");
    stream.write_all(format!("{ADD}\n").as_bytes()).await.expect("written");
    let (shared, stage): (SharedClock, _) = (open.clock.clone(), Stage::new());
    serve(listener, open.desk.clone(), Arc::new(Metrics::new(&Registry::default())), &shared, &stage);
    let mut out = String::new();
    stream.read_to_string(&mut out).await.expect("answered");
    assert_eq!(out, "{\"ok\":true}\n");
    stage.stop();
    // What cannot be made is said at once.
    bind(&open.folder.path().join("none/gate.sock")).expect_err("there is no folder");
}

#[tokio::test]
async fn nobody_waits_for_ever() {
    let open = open();
    *open.desk.kept.lock() = Some(Vec::new());
    let text = format!("{ADD}\n");
    let asked = ask(&open, &text);
    let pass = async {
        while open.desk.kept.lock().as_ref().is_none_or(Vec::is_empty) {
            tokio::task::yield_now().await;
        }
        loop {
            open.clock.advance(LIMIT);
            tokio::task::yield_now().await;
        }
    };
    let answer = tokio::select! {
        answer = asked => answer,
        () = pass => String::new(),
    };
    assert_eq!(answer, "{\"error\":\"the rules of pod n/p were not in the kernel in time\"}\n");
    open.stage.stop();
}
