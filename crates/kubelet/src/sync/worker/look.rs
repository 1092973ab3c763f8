//! What the task sees: the runtime's records of the pod, and probes beside its containers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use stdx::clock::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{LOOK_AGAIN, MAX_LOOKS, Step, Worker};
use crate::probe::Target;
use crate::probe::prober::{Prober, Told};
use crate::probe::threshold::{Kind, Verdict};
use crate::runtime::{Container, ContainerState, PodState, Sandbox};

impl Worker {
    /// Looks at the runtime, if it may have changed.
    pub(super) async fn look(&mut self) {
        if !self.stale || (self.runtime_error.is_some() && self.waits_to_begin()) {
            return;
        }
        match self.ctx.runtime.pod(&self.pod.uid, &self.seen).await {
            Ok(state) => {
                self.stale = false;
                if self.runtime_error.take().is_some() {
                    self.settle();
                }
                self.ctx.owners.learn(&self.pod.uid, &state);
                self.note_ends(&state);
                self.note_starts(&state);
                self.seen = Arc::new(state);
                self.looked_at = Some(self.ctx.clock.now());
                if !std::mem::replace(&mut self.looked, true) {
                    self.adopt();
                }
                let alive = |id: &str| self.seen.by_id(id).is_some_and(|c| c.state == ContainerState::Running);
                self.verdicts.retain(|(id, _), _| alive(id));
                self.told.retain(|(id, _), _| alive(id));
                self.expect_ends();
            }
            Err(error) => {
                self.runtime_error = Some(error.to_string());
                self.back_off();
            }
        }
    }

    /// Takes in what the runtime, and the start under way, have told. What is known already is no reason to look.
    pub(super) fn hear(
        &mut self,
        is_changed: bool,
        made: Option<Sandbox>,
        started: &BTreeSet<String>,
        ended: BTreeSet<String>,
    ) {
        if let Some(made) = made.filter(|made| self.seen.sandboxes.iter().all(|s| s.id != made.id)) {
            let mut seen = PodState::clone(&self.seen);
            seen.sandboxes.insert(0, made);
            self.seen = Arc::new(seen);
        }
        let is_starting = matches!(self.step, Step::Start { .. });
        // A start tells of what it starts, and is followed by a look.
        let starts = !is_starting && started.iter().any(|id| !self.seen.runs(id));
        let seen = self.seen.clone();
        // One that was seen before it started has ended, too.
        let is_news = |id: &String| !seen.has_ended(id);
        let before = self.ending.len();
        self.ending.extend(ended.into_iter().filter(is_news).map(|id| (id, 0)));
        self.stale |= is_changed || starts || self.ending.len() > before;
    }

    /// Sees to it that ends that were reported are found in the runtime's records, soon.
    fn expect_ends(&mut self) {
        let seen = self.seen.clone();
        self.ending.retain(|id, looks| seen.knows(id) && !seen.has_ended(id) && *looks < MAX_LOOKS);
        self.ending.values_mut().for_each(|looks| *looks += 1);
        let looks = self.ending.values().min().copied();
        self.look_again = looks.map(|n| self.ctx.clock.now() + LOOK_AGAIN.delay(n));
    }

    /// Notes when containers ended, on the clock that delays run on.
    fn note_ends(&self, state: &PodState) {
        let (now, wall) = (self.ctx.clock.now(), self.ctx.clock.wall());
        let ended = |c: &&Container| c.state == ContainerState::Exited;
        let mut memory = self.memory.lock();
        let mut ends = HashMap::new();
        for container in state.containers.iter().filter(ended) {
            let at = memory.ended.get(&container.id).copied().unwrap_or_else(|| {
                // The wall clock is asked once, when the end is first seen. It may have been set since: what
                // had not ended at the look before cannot have ended before that look.
                let ago = container
                    .finished_at
                    .map_or(Duration::ZERO, |t| Duration::try_from(wall.duration_since(t)).unwrap_or_default());
                Instant(now.0.saturating_sub(ago)).max(self.looked_at.unwrap_or_default())
            });
            ends.insert(container.id.clone(), at);
        }
        memory.ended = ends;
    }

    /// Notes between which looks containers have started, on the clock that delays run on.
    fn note_starts(&mut self, state: &PodState) {
        let now = self.ctx.clock.now();
        let runs = |id: &str| state.by_id(id).is_some_and(|c| c.state == ContainerState::Running);
        self.started.retain(|id, _| runs(id));
        for container in state.containers.iter().filter(|c| c.state == ContainerState::Running) {
            self.started.entry(container.id.clone()).or_insert((self.looked_at, now));
        }
    }

    /// How long a container runs: as its start says, within what was seen, so that a wall clock that
    /// is set moves no probe.
    fn running_for(&self, found: &Container) -> Duration {
        let now = self.ctx.clock.now();
        let since = found.started_at.map(|t| self.ctx.clock.wall().duration_since(t));
        let said = since.and_then(|d| Duration::try_from(d).ok()).unwrap_or_default();
        let Some((not_before, seen)) = self.started.get(&found.id) else { return said };
        let most = not_before.map_or(Duration::MAX, |at| now.since(at));
        said.max(now.since(*seen)).min(most)
    }

    /// The first look at a pod that may have been running before this process: what was reported
    /// ready stays ready until a probe says otherwise.
    pub(super) fn adopt(&mut self) {
        let reported = self.known.container_statuses.iter().chain(&self.known.init_container_statuses).flatten();
        for status in reported {
            let Some(id) = status.container_id.as_deref().and_then(|id| id.split_once("://")).map(|(_, id)| id) else {
                continue;
            };
            if self.seen.by_id(id).is_none_or(|c| c.state != ContainerState::Running) {
                continue;
            }
            // What a probe has found since is newer.
            let mut set = |kind| {
                self.verdicts.entry((id.to_owned(), kind)).or_insert(Verdict::Success);
            };
            if status.started == Some(true) {
                set(Kind::Startup);
            }
            if status.ready {
                set(Kind::Readiness);
            }
        }
    }

    /// Keeps one prober per probe of every running container, as far as their turn has come.
    pub(super) fn probe(&mut self) {
        let mut wanted = Vec::new();
        if !self.life.is_terminated() {
            for spec in self.pod.all_containers() {
                let running = self.seen.container(&spec.name).filter(|c| c.state == ContainerState::Running);
                let Some(found) = running else { continue };
                let verdict = |kind| self.verdicts.get(&(found.id.clone(), kind)).copied();
                let started = spec.startup_probe.is_none() || verdict(Kind::Startup) == Some(Verdict::Success);
                let alive = verdict(Kind::Liveness) != Some(Verdict::Failure);
                let running = self.life.is_running();
                let kinds = [
                    (Kind::Startup, &spec.startup_probe, !started && verdict(Kind::Startup).is_none() && running),
                    (Kind::Liveness, &spec.liveness_probe, started && alive && running),
                    // A pod that ends is still asked whether it serves.
                    (Kind::Readiness, &spec.readiness_probe, started),
                ];
                for (kind, probe, due) in kinds {
                    if let Some(probe) = probe.as_ref().filter(|_| due) {
                        wanted.push((kind, probe.clone(), spec.clone(), found.clone()));
                    }
                }
            }
        }
        let keys: Vec<_> = wanted.iter().map(|(kind, _, _, found)| (found.id.clone(), *kind)).collect();
        self.probers.retain(|key, _| keys.contains(key));
        let ip = self.ctx.pod_ips(&self.pod, &self.seen).into_iter().next().unwrap_or_default();
        for (kind, probe, container, found) in wanted {
            let key = (found.id.clone(), kind);
            if self.probers.contains_key(&key) {
                continue;
            }
            let running_for = self.running_for(&found);
            let prober = Prober {
                kind,
                target: Target { probe, container, container_id: found.id, ip: ip.clone() },
                pod: self.pod.clone(),
                running_for,
                runtime: self.ctx.runtime.clone(),
                report: self.ctx.report.clone(),
                metrics: self.ctx.metrics.clone(),
                clock: self.ctx.clock.clone(),
            };
            let mail = self.mail.clone();
            let told = move |told: Told| {
                mail.put(|inbox| drop(inbox.told.insert((told.container_id.clone(), told.kind), told)));
            };
            self.probers.insert(key, AbortOnDropHandle::new(tokio::spawn(prober.run(told))));
        }
    }
}
