//! What functions cost that have a rule of their own.

use super::{Arg, Called, Estimator, Place, Range, longer};
use crate::ast::{Kind, Literal, op};
use crate::cost::{LIST, PER_CHAR, PER_PATTERN_CHAR};
use crate::types::{self, Type};

impl Estimator<'_> {
    /// Lists and sets.
    pub(super) fn extension(&self, id: &str, target: Option<&Arg<'_>>, args: &[Arg<'_>]) -> Option<Called> {
        let made = |factor: f64, size: Range| Called {
            cost: size.scale(factor).add(Range::fixed(1 + LIST)),
            size: Some(size),
        };
        let number = |arg: &Arg<'_>, otherwise: u64| match arg.expr.map(|e| &e.kind) {
            Some(Kind::Literal(Literal::Int(i))) => u64::try_from(*i).unwrap_or(0),
            _ => otherwise,
        };
        let pairs = |size: Range, text: bool| made(if text { 2.0 + PER_CHAR } else { 2.0 }, size.times(size));
        Some(match (id, target, args) {
            ("list_slice", Some(list), [start, end]) => {
                let end = number(end, self.arg_size(list).max);
                made(1.0, Range::fixed(end.wrapping_sub(number(start, 0))))
            }
            ("lists_range", None, [count]) => made(1.0, Range::fixed(number(count, u64::MAX))),
            ("list_reverse", Some(list), []) => made(1.0, self.arg_size(list)),
            ("list_flatten", Some(list), []) => made(1.0, self.arg_size(list)),
            ("list_flatten_int", Some(list), [depth]) => made(number(depth, u64::MAX) as f64, self.arg_size(list)),
            ("list_distinct", Some(list), []) => pairs(self.arg_size(list), false),
            (id, Some(list), []) if id.starts_with("list_") && id.ends_with("_sort") => {
                pairs(self.arg_size(list), is_text(id))
            }
            (id, Some(_), [keys]) if id.ends_with("_sortByAssociatedKeys") => pairs(self.arg_size(keys), is_text(id)),
            ("list_sets_contains_list" | "list_sets_intersects_list" | "list_sets_equivalent_list", _, [a, b]) => {
                let times = if id == "list_sets_equivalent_list" { 2.0 } else { 1.0 };
                let cost = self.arg_size(a).times(self.arg_size(b)).scale(times).add(Range::fixed(1));
                cost.into()
            }
            _ => return None,
        })
    }

    /// The element of a list as an argument of its own.
    fn element(&self, list: &Arg<'_>) -> Option<Arg<'static>> {
        let t = match &list.t {
            Type::List(items) | Type::Optional(items) => (**items).clone(),
            Type::Map(entry) => entry.0.clone(),
            _ => return None,
        };
        let place = if list.place.is_empty() { Place::default() } else { longer(&list.place, "@items") };
        Some(Arg { expr: None, place, t, size: None })
    }

    pub(super) fn kubernetes(
        &self,
        function: &str,
        id: &str,
        target: Option<&Arg<'_>>,
        args: &[Arg<'_>],
    ) -> Option<Called> {
        let size = |arg: &Arg<'_>| self.arg_size(arg);
        let chars = |range: Range| range.scale(PER_CHAR);
        let address = Range::new(4, 16);
        let sized = |cost: Range, size: Range| Called { cost, size: Some(size) };
        Some(match (function, target, args) {
            ("check", ..) => Range::fixed(350_000).into(),
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes", Some(target), _) => {
                let mut each = Range::fixed(1);
                match self.element(target) {
                    Some(element) => {
                        if matches!(element.t, Type::String | Type::Bytes) {
                            each = each.add(chars(size(&element)));
                        }
                        size(target).times(each).into()
                    }
                    None if function == "includes" => size(target).times(each).into(),
                    None => chars(size(target)).into(),
                }
            }
            ("url", _, [arg]) => sized(chars(size(arg)), size(arg)),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target), _) => {
                sized(chars(size(target)), size(target))
            }
            ("replace", Some(target), [old, new, ..]) => {
                let own = size(target);
                sized(own.scale(2.0 * PER_CHAR), replaced(own, size(old), size(new)))
            }
            ("split", Some(target), args) => {
                let own = size(target);
                let max = match args.get(1).and_then(|a| a.expr).map(|e| &e.kind) {
                    Some(Kind::Literal(Literal::Int(i))) => *i as u64,
                    _ => own.max,
                };
                sized(own.scale(2.0 * PER_CHAR), Range::new(0, max))
            }
            ("join", Some(target), args) => {
                let list = size(target);
                let mut joined = self.element(target).map_or(Range::fixed(0), |e| list.times(size(&e)));
                if let Some(by) = args.first() {
                    let gaps = Range::new(list.min.saturating_sub(1), list.max.saturating_sub(1));
                    joined = joined.add(size(by).times(gaps));
                }
                sized(chars(joined), joined)
            }
            ("find" | "findAll", Some(target), [pattern, ..]) => {
                let text = chars(size(target).add(Range::fixed(1)));
                let cost = text.times(size(pattern).scale(PER_PATTERN_CHAR));
                sized(cost, Range::new(0, size(target).max))
            }
            ("ip", ..) if id == "cidr_ip" => Range::fixed(1).into(),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _, [arg, ..]) => {
                chars(size(arg)).into()
            }
            ("ip.isCanonical", _, [arg, ..]) => size(arg).scale(2.0 * PER_CHAR).into(),
            ("containsIP", _, [arg, ..]) => {
                let cost = chars(address.add(address));
                if id == "cidr_contains_ip_string" { cost.add(chars(size(arg))).into() } else { cost.into() }
            }
            ("containsCIDR", _, [arg, ..]) => {
                let cost = chars(address.add(address)).add(chars(address)).add(Range::fixed(1));
                if id == "cidr_contains_cidr_string" { cost.add(chars(size(arg))).into() } else { cost.into() }
            }
            ("validate", _, [arg, ..]) => chars(size(arg)).scale(128.0 * PER_PATTERN_CHAR).into(),
            (
                "masked"
                | "prefixLength"
                | "family"
                | "isUnspecified"
                | "isLoopback"
                | "isLinkLocalMulticast"
                | "isLinkLocalUnicast"
                | "isGlobalUnicast"
                | "format.named"
                | "sign"
                | "asInteger"
                | "isInteger"
                | "asApproximateFloat"
                | "isGreaterThan"
                | "isLessThan"
                | "compareTo"
                | "add"
                | "sub"
                | "major"
                | "minor"
                | "patch"
                | "getScheme"
                | "getHostname"
                | "getHost"
                | "getPort"
                | "getEscapedPath"
                | "getQuery",
                ..,
            ) => Range::fixed(1).into(),
            (op::EQUALS, _, [left, right]) if left.t == right.t => match &left.t {
                Type::Named(types::IP | types::CIDR | types::QUANTITY | types::SEMVER) => Range::fixed(1).into(),
                Type::Named(types::FORMAT) => chars(Range::new(1, 64)).into(),
                Type::Named(types::URL) => {
                    let own = right.size.unwrap_or(Range::fixed(1));
                    chars(Range::new(1, own.max)).into()
                }
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Does the form of a sort compare texts?
fn is_text(id: &str) -> bool {
    id.starts_with("list_string_") || id.starts_with("list_bytes_")
}

/// How large a text may become when parts of it are replaced.
fn replaced(own: Range, old: Range, new: Range) -> Range {
    let share = |n: u64, by: u64| (n as f64 / by as f64).ceil() as u64;
    // The most: the smallest parts become the largest.
    let (count_max, kept_max) = if old.min == 0 {
        (own.max.saturating_add(1), own.max)
    } else if new.max <= old.min {
        (0, own.max)
    } else {
        (share(own.max, old.min), 0)
    };
    let (count_min, kept_min) = if old.max == 0 {
        (own.min.saturating_add(1), own.min)
    } else if old.max <= new.min {
        (0, own.min)
    } else {
        (share(own.min, old.max), 0)
    };
    Range::new(count_min, count_max).times(new).add(Range::new(kept_min, kept_max))
}
