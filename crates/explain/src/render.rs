//! The explanation as text. Pure.

use std::fmt::Write;

use api::pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use machinery::time;

use crate::seen::{Happened, Seen};

/// Lines are wrapped here where words allow it.
const WIDTH: usize = 100;
/// More of the past is not shown.
const HISTORY: usize = 50;
const HAS_A_NODE: &str = "has a node";

/// Says what the pod waits for and what happened to it, as of `now`.
pub fn render(seen: &Seen, now: Timestamp) -> String {
    let mut out = String::new();
    headline(&mut out, seen, now);
    waiting(&mut out, seen, "Pod", now);
    history(&mut out, seen, now);
    out
}

pub(crate) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing into a String does not fail.
    let _ = out.write_fmt(text);
    out.push('\n');
}

pub(crate) fn headline(out: &mut String, seen: &Seen, now: Timestamp) {
    let mut text = format!("pod {}/{}", seen.namespace, seen.name);
    match &seen.pod {
        None => text.push_str(" is gone"),
        Some(pod) => {
            let phase = pod::phase(pod);
            let phase = if phase.is_empty() { "Pending" } else { phase };
            text.push_str(&match (pod::is_deleting(pod), pod::is_ready(pod)) {
                (true, _) => " is being deleted".to_owned(),
                (false, true) => format!(" is {phase} and ready"),
                (false, false) if phase == "Running" => " is Running, not ready".to_owned(),
                (false, false) => format!(" is {phase}"),
            });
            if let Some(created) = &pod.metadata.creation_timestamp {
                text.push_str(&format!(", {} old", time::age(created.0, now)));
            }
            let node = pod::node_name(pod);
            text.push_str(&if node.is_empty() { ", on no node".to_owned() } else { format!(", on node {node}") });
        }
    }
    line(out, format_args!("{text}"));
    if !seen.owners.is_empty() {
        let chain: Vec<String> = seen.owners.iter().map(|o| format!("{} {}", o.kind, o.name)).collect();
        line(out, format_args!("of {}", chain.join(", of ")));
    }
}

/// `kind` is what the object itself is: its own Waits need not say whose they are.
pub(crate) fn waiting(out: &mut String, seen: &Seen, kind: &str, now: Timestamp) {
    let mut waits: Vec<_> = seen.waits.iter().collect();
    waits.sort_by(|a, b| {
        (&a.since, &a.layer, &a.code).partial_cmp(&(&b.since, &b.layer, &b.code)).unwrap_or(std::cmp::Ordering::Equal)
    });
    if waits.is_empty() {
        return standing(out, seen);
    }
    line(out, format_args!("\nwaiting"));
    for wait in waits {
        let since = wait.since.as_ref().map(|t| format!(" for {}", time::age(t.0, now))).unwrap_or_default();
        let whose = if wait.object.kind == kind && wait.object.name == seen.name {
            String::new()
        } else {
            format!(" ({} {})", wait.object.kind, wait.object.name)
        };
        line(out, format_args!("  {}{whose}: {}, on {}{since}", wait.layer, wait.code, wait.on));
        wrap(out, "      ", &wait.text);
    }
}

/// What the pod's own status says, where no layer has published what it waits for.
fn standing(out: &mut String, seen: &Seen) {
    let Some(pod) = &seen.pod else { return };
    if pod::is_ready(pod) || pod::phase(pod) == "Succeeded" {
        line(out, format_args!("\nit waits for nothing"));
        return;
    }
    let mut said = Vec::new();
    let status = pod.status.as_ref();
    if let Some(reason) = status.and_then(|s| s.reason.as_deref()).filter(|r| !r.is_empty()) {
        said.push((reason.to_owned(), status.and_then(|s| s.message.clone()).unwrap_or_default()));
    }
    for condition in status.and_then(|s| s.conditions.as_ref()).into_iter().flatten() {
        if condition.status != "True" && condition.message.as_ref().is_some_and(|m| !m.is_empty()) {
            let reason = condition.reason.clone().unwrap_or_default();
            said.push((
                format!("{} {reason}", condition.type_).trim_end().to_owned(),
                condition.message.clone().unwrap_or_default(),
            ));
        }
    }
    for container in containers(pod) {
        let state = container.state.as_ref();
        if let Some(waiting) = state.and_then(|s| s.waiting.as_ref()) {
            let reason = waiting.reason.clone().unwrap_or_default();
            said.push((
                format!("container {} {reason}", container.name).trim_end().to_owned(),
                waiting.message.clone().unwrap_or_default(),
            ));
        } else if let Some(ended) = state.and_then(|s| s.terminated.as_ref()).filter(|t| t.exit_code != 0) {
            let reason = ended.reason.as_deref().unwrap_or("ended");
            said.push((
                format!("container {} {reason}, exit code {}", container.name, ended.exit_code),
                ended.message.clone().unwrap_or_default(),
            ));
        }
    }
    if said.is_empty() && pod::node_name(pod).is_empty() {
        let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler");
        said.push(("no node".to_owned(), format!("no scheduler named {name} has bound it or said why it cannot")));
    }
    if said.is_empty() {
        line(out, format_args!("\nno layer says what it waits for"));
        return;
    }
    line(out, format_args!("\nno layer says what it waits for; its status says"));
    for (what, message) in said {
        line(out, format_args!("  {what}"));
        wrap(out, "      ", &message);
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let all = status.into_iter().flat_map(|s| [&s.init_container_statuses, &s.container_statuses]);
    all.flatten().flatten()
}

fn history(out: &mut String, seen: &Seen, now: Timestamp) {
    let mut history: Vec<Happened> = seen.history.clone();
    if let Some(pod) = &seen.pod {
        // An event says more of it.
        let told = history.iter().any(|h| h.kind == "Pod" && h.reason == "Scheduled");
        history.extend(milestones(pod).into_iter().filter(|m| !(told && m.reason == HAS_A_NODE)));
    }
    happenings(out, history, "Pod", now);
}

/// What happened, in order; what happened to the object itself does not name it.
pub(crate) fn happenings(out: &mut String, mut history: Vec<Happened>, kind: &str, now: Timestamp) {
    // Some times have fractions of a second and some have none: within a second they tell nothing.
    history.sort_by_key(|h| (h.at.map(Timestamp::as_second), h.order));
    let skipped = history.len().saturating_sub(HISTORY);
    if history.is_empty() {
        return;
    }
    line(out, format_args!("\nhistory"));
    if skipped > 0 {
        line(out, format_args!("  … {skipped} earlier"));
    }
    let shown = &history[skipped..];
    let age = |e: &Happened| e.at.map_or_else(|| "?".to_owned(), |at| time::age(at, now));
    let ages = shown.iter().map(|e| age(e).len()).max().unwrap_or_default();
    for happened in shown {
        let mark = if happened.warning { '!' } else { ' ' };
        let whose =
            if happened.kind == kind { String::new() } else { format!("{} {}: ", happened.kind, happened.name) };
        let times = if happened.count > 1 { format!(" (×{})", happened.count) } else { String::new() };
        let text = format!("{whose}{}{times} {}", happened.reason, happened.message);
        let mut wrapped = String::new();
        let indent = " ".repeat(ages + 5);
        wrap(&mut wrapped, &indent, text.trim_end());
        line(out, format_args!("  {:>ages$} {mark} {}", age(happened), wrapped.trim()));
    }
}

/// What the status remembers after events are forgotten.
fn milestones(pod: &Pod) -> Vec<Happened> {
    let mut out = Vec::new();
    let name = pod.metadata.name.clone().unwrap_or_default();
    // `order` within the second: before all events, or after them.
    let mut add = |at: Option<Timestamp>, order: u64, reason: &str, message: String| {
        let (kind, name, reason) = ("Pod".to_owned(), name.clone(), reason.to_owned());
        out.push(Happened { at, order, count: 1, warning: false, kind, name, uid: String::new(), reason, message });
    };
    let (first, last) = (0, u64::MAX);
    let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    if created.is_some() {
        add(created, first, "created", String::new());
    }
    for condition in pod.status.iter().flat_map(|s| s.conditions.iter().flatten()) {
        let at = condition.last_transition_time.as_ref().map(|t| t.0);
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("PodScheduled", "True") => add(at, first, HAS_A_NODE, pod::node_name(pod).to_owned()),
            ("Ready", "True") => add(at, last, "ready", String::new()),
            ("DisruptionTarget", "True") => {
                add(at, first, "to be disrupted", condition.message.clone().unwrap_or_default());
            }
            _ => {}
        }
    }
    for container in containers(pod).filter(|c| c.restart_count > 0) {
        let ended = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let at = ended.and_then(|t| t.finished_at.as_ref()).map(|t| t.0);
        let code = ended.map(|t| format!(", last with exit code {}", t.exit_code)).unwrap_or_default();
        add(at, first, "container ended", format!("{} ({} restarts{code})", container.name, container.restart_count));
    }
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
        let asked = deleted.0.saturating_sub(jiff::SignedDuration::from_secs(grace)).unwrap_or(deleted.0);
        add(Some(asked), first, "deletion asked for", format!("{grace} s of grace"));
    }
    out
}

/// Writes `text` in lines of at most [`WIDTH`], each begun with `indent`.
pub(crate) fn wrap(out: &mut String, indent: &str, text: &str) {
    for paragraph in text.lines() {
        let mut current = indent.to_owned();
        let mut empty = true;
        for word in paragraph.split_whitespace() {
            if !empty && current.chars().count() + 1 + word.chars().count() > WIDTH {
                line(out, format_args!("{current}"));
                current = indent.to_owned();
                empty = true;
            }
            if !empty {
                current.push(' ');
            }
            current.push_str(word);
            empty = false;
        }
        if !empty {
            line(out, format_args!("{current}"));
        }
    }
}
