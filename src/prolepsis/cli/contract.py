"""`prolepsis contract`: what became of accepted tokens between verification and the client."""

from prolepsis.cli.output import AsJson, print_json, print_table
from prolepsis.cli.servers import HERE, Key, Url, ask


def contract(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show accepted and delivered draft tokens by proposer and traffic class, and the output policies."""
    document = ask(url, key, "GET", "/admin/contract")
    if as_json:
        print_json(document)
        return
    if document["policies"]:
        bounds = ("name", "on_fault", "timeout_ms", "max_held")
        print_table("output policies", bounds, [[str(one[name]) for name in bounds] for one in document["policies"]])
    rows = [
        [
            one["proposer"],
            one["traffic_class"],
            str(one["num_verified"]),
            str(one["num_delivered"]),
            f"{100 * one['num_delivered'] / one['num_verified']:.1f}%" if one["num_verified"] else "-",
            ", ".join(f"{reason} {number}" for reason, number in sorted(one["lost"].items())),
        ]
        for one in document["delivered"]
    ]
    print_table(url, ["proposer", "traffic_class", "accepted", "delivered", "share", "lost"], rows)
