//! MutatingWebhookConfiguration: webhooks that may change what is written, or refuse it.

use api::types::admissionregistration::v1 as admission;
use machinery::field::FieldErrors;
use machinery::names;

use crate::admission_rules as rules;
use crate::cells;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::shape::Shape;
use crate::webhooks;

pub struct MutatingWebhookConfiguration;

impl Kind for MutatingWebhookConfiguration {
    type Object = admission::MutatingWebhookConfiguration;
    const SHAPE: Shape = Shape::cluster(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    )
    .singular("mutatingwebhookconfiguration")
    .categories(&["api-extensions"])
    .generation()
    .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, configuration: &mut Self::Object) {
        for hook in configuration.webhooks.iter_mut().flatten() {
            hook.failure_policy.get_or_insert_with(|| "Fail".into());
            hook.match_policy.get_or_insert_with(|| "Equivalent".into());
            hook.namespace_selector.get_or_insert_default();
            hook.object_selector.get_or_insert_default();
            hook.timeout_seconds.get_or_insert(10);
            hook.reinvocation_policy.get_or_insert_with(|| "Never".into());
            webhooks::default_rules(hook.rules.as_mut());
            webhooks::default_client(&mut hook.client_config);
        }
    }

    fn validate(ctx: &Ctx, configuration: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == Verb::Create {
            webhooks::validate(&hooks(configuration), None, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        webhooks::validate(&hooks(new), Some(&hooks(old)), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let idle = new.webhooks.as_ref().is_none_or(Vec::is_empty);
        let not_called = (!idle).then(|| rules::not_called("admission webhooks"));
        rules::reserved_name(new.metadata.name.as_ref()).into_iter().chain(not_called).collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::number("Webhooks", "How many there are."), Column::AGE] },
            row: |configuration, now| {
                let row = vec![
                    cells::name(&configuration.metadata),
                    configuration.webhooks.as_ref().map_or(0, Vec::len).into(),
                    cells::of(&configuration.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn hooks(configuration: &admission::MutatingWebhookConfiguration) -> Vec<webhooks::Hook<'_>> {
    configuration.webhooks.iter().flatten().map(hook).collect()
}

fn hook(hook: &admission::MutatingWebhook) -> webhooks::Hook<'_> {
    webhooks::Hook {
        name: &hook.name,
        versions: &hook.admission_review_versions,
        client: &hook.client_config,
        failure_policy: hook.failure_policy.as_deref(),
        match_policy: hook.match_policy.as_deref(),
        match_conditions: hook.match_conditions.as_ref(),
        namespace_selector: hook.namespace_selector.as_ref(),
        object_selector: hook.object_selector.as_ref(),
        rules: hook.rules.as_ref(),
        side_effects: &hook.side_effects,
        timeout_seconds: hook.timeout_seconds,
        reinvocation_policy: hook.reinvocation_policy.as_deref(),
    }
}
