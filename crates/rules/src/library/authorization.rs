//! What expressions ask of the authorizer. Policies are checked when they are written and evaluated nowhere, so
//! these have types and no values: no `authorizer` is ever given to an expression that runs.

use super::{Imp, no_such_overload};
use crate::meter::Meter;
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("authorizer_path: <Authorizer>.path(string) -> PathCheck", absent),
    ("authorizer_group: <Authorizer>.group(string) -> GroupCheck", absent),
    ("authorizer_serviceaccount: <Authorizer>.serviceAccount(string, string) -> Authorizer", absent),
    ("groupcheck_resource: <GroupCheck>.resource(string) -> ResourceCheck", absent),
    ("resourcecheck_subresource: <ResourceCheck>.subresource(string) -> ResourceCheck", absent),
    ("resourcecheck_namespace: <ResourceCheck>.namespace(string) -> ResourceCheck", absent),
    ("resourcecheck_name: <ResourceCheck>.name(string) -> ResourceCheck", absent),
    ("authorizer_fieldselector: <ResourceCheck>.fieldSelector(string) -> ResourceCheck", absent),
    ("authorizer_labelselector: <ResourceCheck>.labelSelector(string) -> ResourceCheck", absent),
    ("pathcheck_check: <PathCheck>.check(string) -> Decision", absent),
    ("resourcecheck_check: <ResourceCheck>.check(string) -> Decision", absent),
    ("decision_errored: <Decision>.errored() -> bool", absent),
    ("decision_error: <Decision>.error() -> string", absent),
    ("decision_allowed: <Decision>.allowed() -> bool", absent),
    ("decision_reason: <Decision>.reason() -> string", absent),
];

/// No value is of these types.
fn absent<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    Err(no_such_overload("authorizer", args))
}
