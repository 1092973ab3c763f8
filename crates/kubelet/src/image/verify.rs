//! Whether a pod may use an image that is here: it may if it could have fetched it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::credentials::Origin;
use super::reference;

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// Whoever runs here may use what is here.
    Never,
    /// What the kubelet did not fetch was put here for all.
    #[default]
    NotPreloaded,
    /// These are for all: names without tag, or beginnings that end in `/*`.
    NotListed(Vec<String>),
    Always,
}

impl Verification {
    /// By upstream's names.
    pub fn named(name: &str, listed: &[String]) -> Result<Self, String> {
        Ok(match name {
            "NeverVerify" => Self::Never,
            "NeverVerifyPreloadedImages" => Self::NotPreloaded,
            "NeverVerifyAllowlistedImages" => {
                if let Some(wrong) = listed.iter().find(|p| !is_pattern(p)) {
                    return Err(format!("not an image or the beginning of one that ends in \"/*\": {wrong:?}"));
                }
                Self::NotListed(listed.to_vec())
            }
            "AlwaysVerify" => Self::Always,
            other => return Err(format!("unknown image pull credential verification policy: {other}")),
        })
    }

    fn asks(&self, name: &str, fetched_by_us: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded => fetched_by_us,
            Self::NotListed(listed) => !listed.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == pattern,
            }),
            Self::Always => true,
        }
    }
}

fn is_pattern(pattern: &str) -> bool {
    match pattern.strip_suffix("/*") {
        Some(beginning) => !beginning.is_empty() && !beginning.contains(['*', ' ']),
        None => {
            !pattern.contains('*') && reference::parse(pattern).is_ok_and(|r| r.tag.is_none() && r.digest.is_none())
        }
    }
}

/// Who is known to be able to fetch an image under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Known {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<KnownSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<KnownAccount>,
}

/// A pull secret that has fetched it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KnownSecret {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub credential_hash: String,
}

/// A service account that has fetched it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownAccount {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// More than these are not remembered for one name.
const MAX_KNOWN: usize = 100;

impl Known {
    /// Who has fetched it with a credential of that origin.
    pub fn of(origin: &Origin) -> Self {
        let mut out = Self::default();
        match origin.clone() {
            Origin::Node => out.node_pods_accessible = true,
            Origin::Secret { uid, namespace, name, hash } => {
                out.kubernetes_secrets.push(KnownSecret { uid, namespace, name, credential_hash: hash });
            }
            Origin::Account { uid, namespace, name } => {
                out.kubernetes_service_accounts.push(KnownAccount { uid, namespace, name });
            }
        }
        out
    }

    /// Learns of others. True when that was news.
    pub fn merge(&mut self, more: Self) -> bool {
        let before = self.clone();
        if more.node_pods_accessible {
            // Everybody may: who else did is of no interest.
            *self = Self { node_pods_accessible: true, ..Self::default() };
        }
        for secret in more.kubernetes_secrets.into_iter().filter(|_| !before.node_pods_accessible) {
            let same =
                |s: &KnownSecret| s.uid == secret.uid && s.namespace == secret.namespace && s.name == secret.name;
            self.kubernetes_secrets.retain(|s| !same(s));
            self.kubernetes_secrets.push(secret);
        }
        for account in more.kubernetes_service_accounts.into_iter().filter(|_| !before.node_pods_accessible) {
            if !self.kubernetes_service_accounts.contains(&account) {
                self.kubernetes_service_accounts.push(account);
            }
        }
        let surplus = self.kubernetes_secrets.len().saturating_sub(MAX_KNOWN);
        self.kubernetes_secrets.drain(..surplus);
        let surplus = self.kubernetes_service_accounts.len().saturating_sub(MAX_KNOWN);
        self.kubernetes_service_accounts.drain(..surplus);
        *self != before
    }

    /// The same credential, or the same secret or account, has fetched it.
    fn admits(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Node => false,
            Origin::Secret { uid, namespace, name, hash } => self.kubernetes_secrets.iter().any(|s| {
                let alike = !s.credential_hash.is_empty() && s.credential_hash == *hash;
                alike || (s.uid == *uid && s.namespace == *namespace && s.name == *name)
            }),
            Origin::Account { uid, namespace, name } => {
                let known = |a: &KnownAccount| a.uid == *uid && a.namespace == *namespace && a.name == *name;
                self.kubernetes_service_accounts.iter().any(known)
            }
        }
    }
}

/// What is known of an image that is here.
pub struct Facts<'a> {
    /// Its name without tag and digest.
    pub name: &'a str,
    /// The kubelet has fetched it, or has begun to.
    pub fetched_by_us: bool,
    /// Who has, by name.
    pub known: Option<&'a BTreeMap<String, Known>>,
}

/// Whether who has these credentials must fetch the image (again) before it may use it. `None` when
/// that depends on credentials, which then must be looked up.
pub fn must_fetch(policy: &Verification, facts: &Facts, credentials: Option<&[Origin]>) -> Option<bool> {
    if !policy.asks(facts.name, facts.fetched_by_us) {
        return Some(false);
    }
    let Some(known) = facts.known.and_then(|known| known.get(facts.name)) else { return Some(true) };
    if known.node_pods_accessible {
        return Some(false);
    }
    if known.kubernetes_secrets.is_empty() && known.kubernetes_service_accounts.is_empty() {
        return Some(true);
    }
    Some(!credentials?.iter().any(|origin| known.admits(origin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> Origin {
        Origin::Secret { uid: format!("u-{name}"), namespace: "ns".into(), name: name.into(), hash: hash.into() }
    }

    fn account(name: &str) -> Origin {
        Origin::Account { uid: format!("u-{name}"), namespace: "ns".into(), name: name.into() }
    }

    #[test]
    fn who_could_have_fetched_it_may_use_it() {
        let known = |origins: &[Origin]| {
            let mut all = Known::default();
            for origin in origins {
                all.merge(Known::of(origin));
            }
            BTreeMap::from([("reg.io/x".to_owned(), all)])
        };
        let check = |known: &BTreeMap<String, Known>, mine: &[Origin], want: bool| {
            let facts = Facts { name: "reg.io/x", fetched_by_us: true, known: Some(known) };
            assert_eq!(must_fetch(&Verification::NotPreloaded, &facts, Some(mine)), Some(want), "{known:?} {mine:?}");
        };
        let by_a = known(&[secret("a", "1"), account("sa")]);
        check(&by_a, &[], true);
        check(&by_a, &[secret("a", "1")], false);
        // Another secret with the same password, and the same secret with a new one.
        check(&by_a, &[secret("b", "1")], false);
        check(&by_a, &[secret("a", "2")], false);
        check(&by_a, &[secret("b", "2")], true);
        check(&by_a, &[account("sa")], false);
        check(&by_a, &[account("other")], true);
        check(&known(&[Origin::Node]), &[], false);
        check(&BTreeMap::new(), &[secret("a", "1")], true);
        let facts = Facts { name: "reg.io/x", fetched_by_us: true, known: Some(&by_a) };
        assert_eq!(must_fetch(&Verification::Always, &facts, None), None, "the credentials must be looked up");
        let nothing = Facts { name: "reg.io/x", fetched_by_us: true, known: None };
        assert_eq!(must_fetch(&Verification::NotPreloaded, &nothing, None), Some(true));
    }

    #[test]
    fn policies() {
        let listed = ["reg.io/free".to_owned(), "reg.io/all/*".to_owned()];
        let check = |policy: &str, name: &str, fetched_by_us: bool, want: bool| {
            let policy = Verification::named(policy, &listed).expect("a policy");
            let facts = Facts { name, fetched_by_us, known: None };
            assert_eq!(must_fetch(&policy, &facts, None), Some(want), "{policy:?} {name}");
        };
        check("NeverVerify", "reg.io/x", true, false);
        check("NeverVerifyPreloadedImages", "reg.io/x", false, false);
        check("NeverVerifyPreloadedImages", "reg.io/x", true, true);
        check("AlwaysVerify", "reg.io/x", false, true);
        check("NeverVerifyAllowlistedImages", "reg.io/free", true, false);
        check("NeverVerifyAllowlistedImages", "reg.io/freed", true, true);
        check("NeverVerifyAllowlistedImages", "reg.io/all/x/y", true, false);
        assert!(Verification::named("Perhaps", &[]).is_err());
        for wrong in ["*", "/*", "reg.io/a*/x", "reg.io/x:1", ""] {
            assert!(Verification::named("NeverVerifyAllowlistedImages", &[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_all_may_needs_no_names() {
        let mut known = Known::of(&secret("a", "1"));
        assert!(!known.merge(Known::of(&secret("a", "1"))), "nothing new");
        assert!(known.merge(Known::of(&secret("a", "2"))));
        assert_eq!(known.kubernetes_secrets.len(), 1);
        assert!(known.merge(Known::of(&Origin::Node)));
        assert_eq!(known, Known::of(&Origin::Node));
        assert!(!known.merge(Known::of(&secret("b", "1"))));
        for n in 0..300 {
            let mut many = Known::of(&account("x"));
            many.merge(Known::of(&account(&n.to_string())));
            assert!(many.kubernetes_service_accounts.len() <= MAX_KNOWN);
        }
    }
}
