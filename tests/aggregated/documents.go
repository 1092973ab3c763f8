package main

const (
	group   = "sample.example.com"
	version = "v1"
	kind    = "Ship"
	plural  = "ships"
	// aggregated is the form of discovery that tells everything at once.
	aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

type object = map[string]any

var (
	verbs   = []string{"create", "delete", "deletecollection", "get", "list", "update", "watch"}
	ofGroup = object{"name": group, "versions": []any{ofVersion}, "preferredVersion": ofVersion}

	ofVersion = object{"groupVersion": group + "/" + version, "version": version}
	ownKind   = object{"group": group, "version": version, "kind": kind}
)

// documents are what clients find out first, by their paths.
func documents() map[string]object {
	list := object{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{ofGroup}}
	one := object{"kind": "APIGroup", "apiVersion": "v1"}
	for key, value := range ofGroup {
		one[key] = value
	}
	resources := object{
		"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group + "/" + version,
		"resources": []any{object{
			"name": plural, "singularName": "ship", "namespaced": true, "kind": kind, "verbs": verbs,
			"shortNames": []string{"sh"},
		}},
	}
	path := "/openapi/v3/apis/" + group + "/" + version
	index := object{"paths": object{"apis/" + group + "/" + version: object{"serverRelativeURL": path + "?hash=1"}}}
	return map[string]object{
		"/apis": list, "/apis/" + group: one, "/apis/" + group + "/" + version: resources,
		"/openapi/v3": index, path: explained(),
	}
}

// everything is the new form of discovery.
func everything() object {
	resource := object{
		"resource": plural, "responseKind": ownKind, "scope": "Namespaced", "singularResource": "ship",
		"verbs": verbs, "shortNames": []string{"sh"},
	}
	versions := []any{object{"version": version, "resources": []any{resource}, "freshness": "Current"}}
	return object{
		"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": object{},
		"items": []any{object{"metadata": object{"name": group}, "versions": versions}},
	}
}

// explained is what OpenAPI says of ships.
func explained() object {
	text := func(description string) object { return object{"type": "string", "description": description} }
	ship := object{
		"type": "object", "description": "Ship is what sails.",
		"x-kubernetes-group-version-kind": []any{ownKind},
		"properties": object{
			"apiVersion": text("The version."), "kind": text("The kind."),
			"metadata": object{"type": "object", "description": "What every object has."},
			"spec": object{"type": "object", "description": "What it is like.", "properties": object{
				"masts": object{"type": "integer", "description": "How many masts it has."},
			}},
		},
	}
	path := "/apis/" + group + "/" + version + "/namespaces/{namespace}/" + plural
	operation := object{
		"x-kubernetes-action": "list", "x-kubernetes-group-version-kind": ownKind,
		"responses": object{"200": object{"description": "OK"}},
	}
	return object{
		"openapi": "3.0.0", "info": object{"title": "Sample", "version": version},
		"paths":      object{path: object{"get": operation}},
		"components": object{"schemas": object{"com.example.sample.v1.Ship": ship}},
	}
}
