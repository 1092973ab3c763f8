//! A pod whose resources are to change: whether it may have them, and whether it has them by now.

use client::events::Type;

use super::{Step, Worker};
use crate::context::blocking;
use crate::resize::change::{Change, POD, change};
use crate::resize::told::{self, Said};
use crate::runtime::{Container, ContainerState};

impl Worker {
    /// The pod's newest object: what it wishes for, and what it is allocated.
    pub(super) fn set_pod(&mut self, wish: std::sync::Arc<crate::pod::BoundPod>) {
        self.pod = self.ctx.allocations.applied(&wish);
        self.wish = wish;
    }

    fn resize_event(&self, kind: Type, reason: &str, what: &str, generation: i64, error: &str) {
        let text = told::message(&self.wish, what, generation, error);
        self.ctx.report.event(&self.pod, None, kind, reason, text);
    }

    /// Asks for what the pod wishes for and does not have, and notes what its containers have by now.
    /// Only while nothing is under way that may make a container.
    pub(super) async fn resize(&mut self) {
        let at_rest = matches!(self.step, Step::None) && !self.stale && self.looked;
        if !at_rest || !self.life.is_running() || self.wish.is_deleted() || self.wish.has_ended() {
            return;
        }
        let ctx = self.ctx.clone();
        let uid = self.pod.uid.clone();
        let seen = self.seen.clone();
        let mut changed = ctx.allocations.keep_only(&uid, |id| seen.by_id(id).is_some_and(Container::may_run));
        if std::sync::Arc::ptr_eq(&self.wish, &self.pod) {
            self.resizing.pending = None;
        } else {
            changed |= self.ask();
        }
        self.actuated = ctx.allocations.actuated(&uid);
        changed |= self.complete();
        if changed {
            let written = blocking(move || ctx.allocations.write(&uid)).await.and_then(|done| done);
            if let Err(error) = written {
                tracing::warn!(pod = %self.pod.full_name(), %error, "allocated resources not written down");
            }
        }
    }

    /// Asks for what the pod wishes for. True when what it has is to be written down: it was granted something
    /// else, or begins to wait with what it has.
    fn ask(&mut self) -> bool {
        let generation = self.wish.meta().generation.unwrap_or_default();
        let running = self.seen.containers.iter().filter(|c| c.may_run());
        let running: Vec<_> = running.map(|c| (c.id.clone(), c.name.clone())).collect();
        match self.ctx.allocations.grant(&self.wish, &running, &self.mail) {
            Ok(pod) => {
                self.pod = pod;
                self.resizing.pending = None;
                self.resizing.progress = Some(Said { generation, ..Said::default() });
                self.resize_event(Type::Normal, "ResizeStarted", "started", generation, "");
                self.ctx.weigh();
                self.settle();
                true
            }
            Err(refusal) => {
                let said = Said { reason: refusal.reason.into(), message: refusal.message, generation };
                let is_new = |old: &Said| old.reason != said.reason || old.generation != said.generation;
                let begins = self.resizing.pending.as_ref().is_none_or(is_new);
                if begins {
                    let reason = format!("Resize{}", said.reason);
                    self.resize_event(Type::Warning, &reason, &said.reason, generation, &said.message);
                }
                self.resizing.pending = Some(said);
                begins
            }
        }
    }

    /// Notes that every running container has what is allocated. True when that is news.
    fn complete(&mut self) -> bool {
        let running = |c: &&api::types::core::v1::Container| {
            let found = self.seen.container(&c.name).filter(|f| f.state == ContainerState::Running);
            found.is_some_and(|f| change(&self.pod, c, self.actuated.get(&f.id)) != Change::Nothing)
        };
        let waits = self.actuated.contains_key(POD) || self.pod.all_containers().any(|c| running(&c));
        if waits {
            self.resizing.progress.get_or_insert_with(|| Said {
                generation: self.pod.meta().generation.unwrap_or_default(),
                ..Said::default()
            });
            return false;
        }
        let Some(said) = self.resizing.progress.take() else { return false };
        for id in std::mem::take(&mut self.actuated).keys() {
            self.ctx.allocations.done(&self.pod.uid, id);
        }
        self.resize_event(Type::Normal, "ResizeCompleted", "completed", said.generation, "");
        true
    }

    /// A resize that was granted could not be carried out (yet).
    pub(super) fn resize_failed(&mut self, why: String) {
        let generation = self.pod.meta().generation.unwrap_or_default();
        let said = self.resizing.progress.get_or_insert_with(|| Said { generation, ..Said::default() });
        let generation = said.generation;
        if said.reason == "Error" && said.message == why {
            return;
        }
        (said.reason, said.message) = ("Error".into(), why.clone());
        self.resize_event(Type::Warning, "ResizeError", "error", generation, &why);
    }
}
