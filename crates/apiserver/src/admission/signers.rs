//! Who may approve, sign and attest for a signer, as the plugins of certificates ask it.

use kinds::User;

use crate::authz::Authorizer;
use crate::objects::Resource;
use crate::request::RequestInfo;

pub const REQUESTS: Resource = Resource { group: "certificates.k8s.io", plural: "certificatesigningrequests" };
pub const POD_REQUESTS: Resource = Resource { group: "certificates.k8s.io", plural: "podcertificaterequests" };
pub const BUNDLES: Resource = Resource { group: "certificates.k8s.io", plural: "clustertrustbundles" };

/// True when the user may do `verb` for the signer, or for all signers of its domain.
pub fn may(authorizer: &dyn Authorizer, user: &User, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    let allows = |name: String| {
        let request = RequestInfo {
            is_resource: true,
            verb: verb.to_owned(),
            group: "certificates.k8s.io".to_owned(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            name,
            ..RequestInfo::default()
        };
        authorizer.authorize(user, &request).is_allowed()
    };
    allows(signer.to_owned()) || allows(format!("{domain}/*"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::Decision;

    struct Names(&'static [&'static str]);

    impl Authorizer for Names {
        fn authorize(&self, _user: &User, request: &RequestInfo) -> Decision {
            match self.0.contains(&request.name.as_str()) && request.verb == "sign" && request.resource == "signers" {
                true => Decision::Allow { reason: String::new() },
                false => Decision::silent(),
            }
        }
    }

    #[test]
    fn a_signer_or_its_whole_domain() {
        for (names, verb, want) in [
            (&["example.com/a"][..], "sign", true),
            (&["example.com/*"], "sign", true),
            (&["example.com/b", "other.com/*"], "sign", false),
            (&["example.com/a"], "approve", false),
        ] {
            assert_eq!(may(&Names(names), &User::default(), verb, "example.com/a"), want, "{names:?} {verb}");
        }
    }
}
