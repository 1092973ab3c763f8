//! `metav1.LabelSelector` as a matcher.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use machinery::labels::{Operator, Requirement, Selector};

/// The matcher a `LabelSelector` describes. An empty one matches everything; for an absent one
/// see [`selector_or_nothing`].
pub fn selector(from: &LabelSelector) -> Result<Selector, String> {
    let mut requirements = Vec::new();
    for (key, value) in from.match_labels.iter().flatten() {
        requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()]).map_err(|e| e.to_string())?);
    }
    for expression in from.match_expressions.iter().flatten() {
        let operator = match expression.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            other => return Err(format!("{other:?} is not a valid label selector operator")),
        };
        let values = expression.values.clone().unwrap_or_default();
        requirements.push(Requirement::new(&expression.key, operator, values).map_err(|e| e.to_string())?);
    }
    Ok(Selector::new(requirements))
}

/// The same where the field may be absent: then nothing matches.
pub fn selector_or_nothing(from: Option<&LabelSelector>) -> Result<Selector, String> {
    from.map_or_else(|| Ok(Selector::nothing()), selector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::labels::Labels;
    use serde_json::json;

    #[test]
    fn expressions_and_labels_must_all_hold() {
        let from: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["a", "b"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }))
        .expect("a selector");
        let selector = selector(&from).expect("valid");
        assert_eq!(selector.to_string(), "app=web,!old,tier in (a,b)");
        let labels =
            |pairs: &[(&str, &str)]| -> Labels { pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect() };
        assert!(selector.matches(&labels(&[("app", "web"), ("tier", "b")])));
        assert!(!selector.matches(&labels(&[("app", "web"), ("tier", "b"), ("old", "")])));
        assert!(!selector.matches(&labels(&[("app", "web")])));
        assert!(super::selector(&LabelSelector::default()).expect("valid").is_empty());
        assert!(!selector_or_nothing(None).expect("valid").matches(&labels(&[])));
    }

    #[test]
    fn an_unknown_operator_is_refused() {
        let from: LabelSelector =
            serde_json::from_value(json!({"matchExpressions": [{"key": "a", "operator": "Near"}]})).expect("json");
        assert_eq!(selector(&from).expect_err("bad"), "\"Near\" is not a valid label selector operator");
    }
}
