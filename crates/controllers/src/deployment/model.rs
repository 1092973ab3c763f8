//! A Deployment and its ReplicaSets as the plan sees them: numbers to decide on, trees to write.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSetCondition};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde_json::Value;

use crate::templates;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const ROLLBACK: &str = "deprecated.deployment.rollback.to";
/// Annotations that stay on the object they are on.
const OWN: [&str; 6] = [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED, MAX, ROLLBACK];
/// The list of earlier revisions grows to this many bytes.
const HISTORY: usize = 2000;

/// One ReplicaSet of the Deployment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Set {
    /// The whole object; changed in place, written back when it differs from what was read.
    pub object: Value,
    pub name: String,
    pub uid: String,
    pub created: Timestamp,
    pub deleting: bool,
    pub generation: i64,
    pub replicas: i32,
    pub status: SetStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct SetStatus {
    pub replicas: i32,
    pub ready_replicas: i32,
    pub available_replicas: i32,
    pub terminating_replicas: Option<i32>,
    pub observed_generation: i64,
    pub conditions: Vec<ReplicaSetCondition>,
}

impl Set {
    pub(super) fn of(object: Value) -> Self {
        use machinery::meta;
        let status = object.get("status").cloned().unwrap_or_default();
        Self {
            name: meta::name(&object).to_owned(),
            uid: meta::uid(&object).to_owned(),
            created: meta::creation_timestamp(&object).unwrap_or_default(),
            deleting: meta::is_deleting(&object),
            generation: meta::generation(&object),
            replicas: object
                .pointer("/spec/replicas")
                .and_then(Value::as_i64)
                .and_then(|n| n.try_into().ok())
                .unwrap_or(1),
            status: serde_json::from_value(status).unwrap_or_default(),
            object,
        }
    }

    pub(super) fn template(&self) -> &Value {
        self.object.pointer("/spec/template").unwrap_or(&Value::Null)
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        machinery::meta::annotation(&self.object, key)
    }

    fn number(&self, key: &str) -> Option<i64> {
        self.annotation(key)?.parse().ok()
    }

    pub(super) fn revision(&self) -> i64 {
        self.number(REVISION).unwrap_or(0)
    }

    pub(super) fn desired(&self) -> Option<i32> {
        self.number(DESIRED)?.try_into().ok()
    }

    pub(super) fn max(&self) -> Option<i32> {
        self.number(MAX)?.try_into().ok()
    }

    pub(super) fn scale(&mut self, replicas: i32) {
        self.replicas = replicas;
        self.object["spec"]["replicas"] = replicas.into();
    }

    /// Notes how many replicas the Deployment wants, and how many it allows while it rolls.
    pub(super) fn note_size(&mut self, wanted: i32, max: i32) {
        machinery::meta::set_annotation(&mut self.object, DESIRED, Some(&wanted.to_string()));
        machinery::meta::set_annotation(&mut self.object, MAX, Some(&max.to_string()));
    }

    /// Gives the set the Deployment's annotations and, when it is newer, the revision.
    pub(super) fn annotate(&mut self, deployment: &Rollout, revision: i64) {
        for (key, value) in machinery::meta::annotations(&deployment.object) {
            if !OWN.contains(&key.as_str()) {
                machinery::meta::set_annotation(&mut self.object, &key, Some(&value));
            }
        }
        let old = self.annotation(REVISION).map(str::to_owned);
        if self.revision() >= revision {
            return;
        }
        machinery::meta::set_annotation(&mut self.object, REVISION, Some(&revision.to_string()));
        let Some(old) = old else { return };
        let history = self.annotation(REVISION_HISTORY).unwrap_or_default();
        let mut revisions: Vec<&str> = history.split(',').filter(|r| !r.is_empty()).collect();
        revisions.push(&old);
        let length = |list: &[&str]| list.iter().map(|r| r.len() + 1).sum::<usize>().saturating_sub(1);
        while length(&revisions) > HISTORY && revisions.len() > 1 {
            revisions.remove(0);
        }
        let history = revisions.join(",");
        machinery::meta::set_annotation(&mut self.object, REVISION_HISTORY, Some(&history));
    }
}

/// The Deployment.
#[derive(Clone, Debug)]
pub(super) struct Rollout {
    pub object: Value,
    pub name: String,
    pub generation: i64,
    pub deleting: bool,
    pub replicas: i32,
    pub paused: bool,
    pub is_rolling: bool,
    surge: IntOrString,
    unavailable: IntOrString,
    pub min_ready_seconds: i32,
    pub history: Option<i32>,
    /// `None` when there is no deadline.
    pub deadline: Option<i32>,
    pub status: DeploymentStatus,
}

impl Rollout {
    pub(super) fn of(object: Value, typed: &Deployment) -> Self {
        let spec = &typed.spec;
        let strategy = spec.strategy.clone().unwrap_or_default();
        let rolling = strategy.rolling_update.unwrap_or_default();
        let quarter = || IntOrString::String("25%".into());
        Self {
            name: machinery::meta::name(&object).to_owned(),
            generation: machinery::meta::generation(&object),
            deleting: machinery::meta::is_deleting(&object),
            replicas: spec.replicas.unwrap_or(1),
            paused: spec.paused.unwrap_or(false),
            is_rolling: strategy.type_.as_deref() != Some("Recreate"),
            surge: rolling.max_surge.unwrap_or_else(quarter),
            unavailable: rolling.max_unavailable.unwrap_or_else(quarter),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0),
            history: spec.revision_history_limit.filter(|l| *l != i32::MAX),
            deadline: spec.progress_deadline_seconds.filter(|d| *d != i32::MAX),
            status: typed.status.clone().unwrap_or_default(),
            object,
        }
    }

    pub(super) fn template(&self) -> &Value {
        self.object.pointer("/spec/template").unwrap_or(&Value::Null)
    }

    fn fences(&self) -> (i32, i32) {
        let surge = scaled(&self.surge, self.replicas, true);
        let unavailable = scaled(&self.unavailable, self.replicas, false);
        // Percentages of few pods may both come to nothing; then a rollout could never move.
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }

    pub(super) fn max_surge(&self) -> i32 {
        if self.is_rolling { self.fences().0 } else { 0 }
    }

    pub(super) fn max_unavailable(&self) -> i32 {
        if !self.is_rolling || self.replicas == 0 { 0 } else { self.fences().1.min(self.replicas) }
    }

    pub(super) fn max_pods(&self) -> i32 {
        self.replicas.saturating_add(self.max_surge())
    }

    pub(super) fn collisions(&self) -> i32 {
        self.status.collision_count.unwrap_or(0)
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&DeploymentCondition> {
        condition(&self.status, kind)
    }

    /// The ReplicaSet whose template is the Deployment's: the oldest, should there be several.
    pub(super) fn newest<'a>(&self, sets: &'a [Set]) -> Option<&'a Set> {
        let same = sets.iter().filter(|s| templates::is_same(s.template(), self.template()));
        same.min_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)))
    }
}

pub(super) fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|c| c.type_.as_deref() == Some(kind))
}

fn scaled(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let Some(percent) = text.strip_suffix('%').and_then(|p| p.parse::<i64>().ok()) else { return 0 };
            let product = i64::from(total).saturating_mul(percent);
            let rounded = if up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
            rounded.try_into().unwrap_or(i32::MAX)
        }
    }
}
