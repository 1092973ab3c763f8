//! How versions of an API compare.

/// How mature a version is: `v2` > `v1` > `v1beta2` > `v1beta1` > `v1alpha1` > anything else.
pub fn rank(version: &str) -> (u8, u32, u32) {
    let number = |text: &str| text.parse::<u32>().ok();
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    for (word, maturity) in [("alpha", 1), ("beta", 2)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return match (number(major), number(minor)) {
                (Some(major), Some(minor)) => (maturity, major, minor),
                _ => (0, 0, 0),
            };
        }
    }
    number(rest).map_or((0, 0, 0), |major| (3, major, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rank_by_maturity() {
        let mut versions = ["v1alpha1", "v1", "other", "v2", "v1beta1", "v1beta2", "v10", "v2alpha1"];
        versions.sort_by_key(|v| std::cmp::Reverse(rank(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "v1alpha1", "other"]);
    }
}
