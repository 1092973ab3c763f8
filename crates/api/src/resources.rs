//! Sums of resources: what containers ask for, what nodes have.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use machinery::quantity::Quantity;

/// Amounts by resource name (`cpu`, `memory`, `example.com/gpu`).
pub type Resources = BTreeMap<String, Quantity>;

/// The amounts of a resource list. What is no quantity counts as nothing: validation has refused it.
pub fn parse(list: &BTreeMap<String, Text>) -> Resources {
    list.iter().map(|(name, text)| (name.clone(), amount(text))).collect()
}

/// One amount.
pub fn amount(text: &Text) -> Quantity {
    text.0.trim().parse().unwrap_or(Quantity::ZERO)
}

/// The amounts as a resource list in canonical form.
pub fn print(resources: &Resources) -> BTreeMap<String, Text> {
    resources.iter().map(|(name, amount)| (name.clone(), Text(amount.to_string()))).collect()
}

/// Adds `more` to `sum`.
pub fn add(sum: &mut Resources, more: &Resources) {
    for (name, amount) in more {
        let entry = sum.entry(name.clone()).or_default();
        *entry = entry.add(amount);
    }
}

/// Takes `less` away from `sum`.
pub fn sub(sum: &mut Resources, less: &Resources) {
    for (name, amount) in less {
        let entry = sum.entry(name.clone()).or_default();
        *entry = entry.sub(amount);
    }
}

/// Raises each amount of `sum` to that of `other`.
pub fn max(sum: &mut Resources, other: &Resources) {
    for (name, amount) in other {
        match sum.get_mut(name) {
            Some(have) if *have >= *amount => {}
            Some(have) => *have = *amount,
            None => {
                sum.insert(name.clone(), *amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Resources {
        parse(&pairs.iter().map(|(k, v)| ((*k).to_owned(), Text((*v).to_owned()))).collect())
    }

    #[test]
    fn sums_and_maxima() {
        let mut sum = of(&[("cpu", "500m"), ("memory", "1Gi")]);
        add(&mut sum, &of(&[("cpu", "1"), ("x", "2")]));
        max(&mut sum, &of(&[("x", "1"), ("memory", "2Gi")]));
        sub(&mut sum, &of(&[("cpu", "100m")]));
        let printed: Vec<String> = print(&sum).into_iter().map(|(k, v)| format!("{k}={}", v.0)).collect();
        assert_eq!(printed, ["cpu=1400m", "memory=2Gi", "x=2"]);
        assert_eq!(amount(&Text("nonsense".into())), Quantity::ZERO);
    }
}
