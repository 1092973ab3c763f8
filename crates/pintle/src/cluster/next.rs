//! What a user types after `pintle up`.

use host::layout::Layout;

use crate::commands::up::Up;

/// The commands, with the context or the file that reaches this cluster.
pub fn commands(args: &Up, layout: &Layout) -> Vec<String> {
    let kubectl = if args.no_user_kubeconfig {
        format!("kubectl --kubeconfig {}", layout.admin_kubeconfig().display())
    } else {
        "kubectl --context pintle".to_owned()
    };
    vec![
        format!("{kubectl} get nodes"),
        format!("{kubectl} apply -f your-deployment.yaml"),
        format!("{kubectl} get waits -A        # what holds things up, and why"),
        "pintle why pod/NAME".to_owned(),
        "pintle down                # stop; pods keep running".to_owned(),
    ]
}
