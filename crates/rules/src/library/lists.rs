//! Lists.

use std::cmp::Ordering;

use super::operators::compare;
use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::number;
use crate::value::{List, Out, Val, equal};

pub const TABLE: &[(&str, Imp)] = &[
    ("list_int_is_sorted_bool: <list<int>>.isSorted() -> bool", is_sorted),
    ("list_uint_is_sorted_bool: <list<uint>>.isSorted() -> bool", is_sorted),
    ("list_double_is_sorted_bool: <list<double>>.isSorted() -> bool", is_sorted),
    ("list_bool_is_sorted_bool: <list<bool>>.isSorted() -> bool", is_sorted),
    ("list_duration_is_sorted_bool: <list<duration>>.isSorted() -> bool", is_sorted),
    ("list_timestamp_is_sorted_bool: <list<timestamp>>.isSorted() -> bool", is_sorted),
    ("list_string_is_sorted_bool: <list<string>>.isSorted() -> bool", is_sorted),
    ("list_bytes_is_sorted_bool: <list<bytes>>.isSorted() -> bool", is_sorted),
    ("list_int_sum_int: <list<int>>.sum() -> int", sum_int),
    ("list_uint_sum_uint: <list<uint>>.sum() -> uint", sum_uint),
    ("list_double_sum_double: <list<double>>.sum() -> double", sum_double),
    ("list_duration_sum_duration: <list<duration>>.sum() -> duration", sum_duration),
    ("list_int_max_int: <list<int>>.max() -> int", max),
    ("list_uint_max_uint: <list<uint>>.max() -> uint", max),
    ("list_double_max_double: <list<double>>.max() -> double", max),
    ("list_bool_max_bool: <list<bool>>.max() -> bool", max),
    ("list_duration_max_duration: <list<duration>>.max() -> duration", max),
    ("list_timestamp_max_timestamp: <list<timestamp>>.max() -> timestamp", max),
    ("list_string_max_string: <list<string>>.max() -> string", max),
    ("list_bytes_max_bytes: <list<bytes>>.max() -> bytes", max),
    ("list_int_min_int: <list<int>>.min() -> int", min),
    ("list_uint_min_uint: <list<uint>>.min() -> uint", min),
    ("list_double_min_double: <list<double>>.min() -> double", min),
    ("list_bool_min_bool: <list<bool>>.min() -> bool", min),
    ("list_duration_min_duration: <list<duration>>.min() -> duration", min),
    ("list_timestamp_min_timestamp: <list<timestamp>>.min() -> timestamp", min),
    ("list_string_min_string: <list<string>>.min() -> string", min),
    ("list_bytes_min_bytes: <list<bytes>>.min() -> bytes", min),
    ("list_slice: <list<T>>.slice(int, int) -> list<T>", slice),
    ("list_flatten: <list<list<T>>>.flatten() -> list<T>", flatten),
    ("list_flatten_int: <list<dyn>>.flatten(int) -> list<dyn>", flatten),
    ("list_int_sort: <list<int>>.sort() -> list<int>", sort),
    ("list_uint_sort: <list<uint>>.sort() -> list<uint>", sort),
    ("list_double_sort: <list<double>>.sort() -> list<double>", sort),
    ("list_bool_sort: <list<bool>>.sort() -> list<bool>", sort),
    ("list_google.protobuf.Duration_sort: <list<duration>>.sort() -> list<duration>", sort),
    ("list_google.protobuf.Timestamp_sort: <list<timestamp>>.sort() -> list<timestamp>", sort),
    ("list_string_sort: <list<string>>.sort() -> list<string>", sort),
    ("list_bytes_sort: <list<bytes>>.sort() -> list<bytes>", sort),
    ("list_int_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<int>) -> list<T>", sort_by),
    ("list_uint_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<uint>) -> list<T>", sort_by),
    ("list_double_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<double>) -> list<T>", sort_by),
    ("list_bool_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<bool>) -> list<T>", sort_by),
    (
        "list_google.protobuf.Duration_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<duration>) -> list<T>",
        sort_by,
    ),
    (
        "list_google.protobuf.Timestamp_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<timestamp>) -> \
         list<T>",
        sort_by,
    ),
    ("list_string_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<string>) -> list<T>", sort_by),
    ("list_bytes_sortByAssociatedKeys: <list<T>>.@sortByAssociatedKeys(list<bytes>) -> list<T>", sort_by),
    ("lists_range: lists.range(int) -> list<int>", range),
    ("list_reverse: <list<T>>.reverse() -> list<T>", reverse),
    ("list_distinct: <list<T>>.distinct() -> list<T>", distinct),
];

/// The longest list of numbers that may be asked for.
const MAX_RANGE: i64 = 1_000_000;

/// The elements, each counted as a step.
fn items<'a>(list: &List<'a>, meter: &mut Meter) -> Result<Vec<Val<'a>>, Error> {
    meter.step(list.len() as u64)?;
    meter.allocate(list.len().saturating_mul(size_of::<Val<'_>>()))?;
    list.iter().collect()
}

fn is_sorted<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("isSorted", args)) };
    let mut previous: Option<Val<'a>> = None;
    for item in list.iter() {
        meter.step(1)?;
        let item = item?;
        if let Some(previous) = &previous
            && compare(previous, &item, "isSorted").is_ok_and(Ordering::is_gt)
        {
            return Ok(Val::Bool(false));
        }
        previous = Some(item);
    }
    Ok(Val::Bool(true))
}

fn sum<'a>(meter: &mut Meter, args: &[Val<'a>], zero: Val<'a>, add: fn(&Val<'a>, &Val<'a>) -> Out<'a>) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("sum", args)) };
    let mut total = zero;
    for item in list.iter() {
        meter.step(1)?;
        total = add(&total, &item?)?;
    }
    Ok(total)
}

fn sum_int<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    sum(meter, args, Val::Int(0), |a, b| match (a, b) {
        (Val::Int(a), Val::Int(b)) => number::int(a.checked_add(*b)),
        _ => Err(Error::no_such_overload()),
    })
}

fn sum_uint<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    sum(meter, args, Val::Uint(0), |a, b| match (a, b) {
        (Val::Uint(a), Val::Uint(b)) => number::uint(a.checked_add(*b)),
        _ => Err(Error::no_such_overload()),
    })
}

fn sum_double<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    sum(meter, args, Val::Double(0.0), |a, b| match (a, b) {
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a + b)),
        _ => Err(Error::no_such_overload()),
    })
}

fn sum_duration<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    sum(meter, args, Val::Duration(0), |a, b| match (a, b) {
        (Val::Duration(a), Val::Duration(b)) => {
            a.checked_add(*b).map(Val::Duration).ok_or_else(|| Error::new("integer overflow"))
        }
        _ => Err(Error::no_such_overload()),
    })
}

fn best<'a>(meter: &mut Meter, args: &[Val<'a>], name: &str, replaced: Ordering) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload(name, args)) };
    let mut best: Option<Val<'a>> = None;
    for item in list.iter() {
        meter.step(1)?;
        let item = item?;
        best = Some(match best {
            None => item,
            Some(known) if compare(&known, &item, name).is_ok_and(|o| o == replaced) => item,
            Some(known) => known,
        });
    }
    best.ok_or_else(|| Error::new(format!("{name} called on empty list")))
}

fn max<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    best(meter, args, "max", Ordering::Less)
}

fn min<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    best(meter, args, "min", Ordering::Greater)
}

fn place<'a>(meter: &mut Meter, args: &[Val<'a>], last: bool) -> Out<'a> {
    let [Val::List(list), wanted] = args else { return Err(no_such_overload("indexOf", args)) };
    let mut found = -1;
    for (i, item) in list.iter().enumerate() {
        meter.step(1)?;
        match item.and_then(|item| equal(&item, wanted, meter)) {
            Ok(true) => {
                found = i64::try_from(i).unwrap_or(i64::MAX);
                if !last {
                    break;
                }
            }
            Err(Error::Cancelled) => return Err(Error::Cancelled),
            _ => {}
        }
    }
    Ok(Val::Int(found))
}

pub fn index_of<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    place(meter, args, false)
}

pub fn last_index_of<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    place(meter, args, true)
}

fn slice<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list), Val::Int(start), Val::Int(end)] = args else {
        return Err(no_such_overload("slice", args));
    };
    let wrong = |why: &str| Err(Error::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(from), Ok(to)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return wrong("negative indexes not supported");
    };
    if from > to {
        return wrong("start index must be less than or equal to end index");
    }
    if to > list.len() {
        return wrong(&format!("list is length {}", list.len()));
    }
    meter.allocate((to - from).saturating_mul(size_of::<Val<'_>>()))?;
    Ok(Val::list((from..to).map_while(|i| list.get(i)).collect::<Result<_, _>>()?))
}

fn flatten<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let (list, depth) = match args {
        [Val::List(list)] => (list, 1),
        [Val::List(list), Val::Int(depth)] => (list, *depth),
        _ => return Err(no_such_overload("flatten", args)),
    };
    if depth < 0 {
        return Err(Error::new("level must be non-negative"));
    }
    let mut out = Vec::new();
    flatten_into(list, depth, meter, &mut out)?;
    Ok(Val::list(out))
}

fn flatten_into<'a>(list: &List<'a>, depth: i64, meter: &mut Meter, out: &mut Vec<Val<'a>>) -> Result<(), Error> {
    for item in list.iter() {
        meter.allocate(size_of::<Val<'_>>())?;
        match item? {
            Val::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, meter, out)?,
            other => out.push(other),
        }
    }
    Ok(())
}

fn sort<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("sort", args)) };
    let keys = items(list, meter)?;
    sorted(meter, keys.clone(), keys)
}

fn sort_by<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list), Val::List(keys)] = args else {
        return Err(no_such_overload("@sortByAssociatedKeys", args));
    };
    if list.len() != keys.len() {
        return Err(Error::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            list.len(),
            keys.len()
        )));
    }
    let (list, keys) = (items(list, meter)?, items(keys, meter)?);
    sorted(meter, list, keys)
}

fn sorted<'a>(meter: &mut Meter, list: Vec<Val<'a>>, keys: Vec<Val<'a>>) -> Out<'a> {
    if let Some(first) = keys.first() {
        let comparable = matches!(
            first,
            Val::Bool(_)
                | Val::Int(_)
                | Val::Uint(_)
                | Val::Double(_)
                | Val::String(_)
                | Val::Bytes(_)
                | Val::Duration(_)
                | Val::Timestamp(_)
        );
        if !comparable {
            return Err(Error::new("list elements must be comparable"));
        }
        let same = |v: &Val<'_>| std::mem::discriminant(v) == std::mem::discriminant(first);
        if !keys.iter().all(same) {
            return Err(Error::new("list elements must have the same type"));
        }
    }
    let length = keys.len() as u64;
    meter.step(length.saturating_mul(u64::from(length.max(1).ilog2() + 1)))?;
    let mut pairs: Vec<(Val<'a>, Val<'a>)> = keys.into_iter().zip(list).collect();
    pairs.sort_by(|a, b| compare(&a.0, &b.0, "sort").unwrap_or(Ordering::Equal));
    Ok(Val::list(pairs.into_iter().map(|(_, value)| value).collect()))
}

fn range<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::Int(count)] = args else { return Err(no_such_overload("lists.range", args)) };
    let Ok(length) = usize::try_from(*count) else {
        return Err(Error::new(format!("lists.range: size must be non-negative, got {count}")));
    };
    if *count > MAX_RANGE {
        return Err(Error::new(format!("lists.range: size {count} exceeds maximum allowed ({MAX_RANGE})")));
    }
    meter.allocate(length.saturating_mul(size_of::<Val<'_>>()))?;
    Ok(Val::list((0..*count).map(Val::Int).collect()))
}

fn reverse<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("reverse", args)) };
    let mut out = items(list, meter)?;
    out.reverse();
    Ok(Val::list(out))
}

fn distinct<'a>(meter: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    let [Val::List(list)] = args else { return Err(no_such_overload("distinct", args)) };
    let mut out: Vec<Val<'a>> = Vec::new();
    for item in items(list, meter)? {
        let mut known = false;
        for have in &out {
            match equal(&item, have, meter) {
                Ok(true) => {
                    known = true;
                    break;
                }
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                _ => {}
            }
        }
        if !known {
            out.push(item);
        }
    }
    Ok(Val::list(out))
}
