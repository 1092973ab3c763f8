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
    let flags = args.roots.flags();
    let commands = [
        (format!("{kubectl} get nodes"), ""),
        (format!("{kubectl} apply -f your-deployment.yaml"), ""),
        (format!("{kubectl} get waits -A"), "what holds things up, and why"),
        (format!("pintle why pod/NAME{flags}"), "the same for one pod, with its history"),
        (format!("pintle down{flags}"), "stop; pods keep running"),
    ];
    let said = |(command, what): &(String, &str)| match *what {
        "" => command.clone(),
        what => format!("{command:<40} # {what}"),
    };
    commands.iter().map(said).collect()
}
