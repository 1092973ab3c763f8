package main

import (
	"fmt"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func init() {
	checks["identity"] = tokensAndReviews
	checks["errors"] = errorsAreTold
}

// tokensAndReviews acts as a ServiceAccount: by token, with a role, and asks who it is.
func tokensAndReviews(e *env) error {
	admin, err := e.clientset()
	if err != nil {
		return err
	}
	accounts := admin.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(e.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	hour := int64(3600)
	token, err := accounts.CreateToken(e.ctx, "robot", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("a token: %w", err)
	}
	config := rest.AnonymousClientConfig(e.config)
	config.BearerToken = token.Status.Token
	robot, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	const user = "system:serviceaccount:default:robot"
	_, err = robot.CoreV1().ConfigMaps(namespace).List(e.ctx, metav1.ListOptions{})
	const refused = `configmaps is forbidden: User "` + user + `" cannot list resource "configmaps" in API group "" in the namespace "default"`
	if !apierrors.IsForbidden(err) || err.Error() != refused {
		return fmt.Errorf("without a role: %v", err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}},
	}}
	if _, err := admin.RbacV1().Roles(namespace).Create(e.ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "robot", Namespace: namespace}},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(e.ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	err = e.until("the role counts", func() error {
		_, err := robot.CoreV1().ConfigMaps(namespace).List(e.ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return err
	}
	review, err := robot.AuthenticationV1().SelfSubjectReviews().Create(e.ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	access, err := robot.AuthorizationV1().SelfSubjectAccessReviews().Create(e.ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "delete", Resource: "configmaps"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	other, err := admin.AuthorizationV1().SubjectAccessReviews().Create(e.ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "configmaps"}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	checked, err := admin.AuthenticationV1().TokenReviews().Create(e.ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	rules, err := robot.AuthorizationV1().SelfSubjectRulesReviews().Create(e.ctx, &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	config.BearerToken = token.Status.Token[:len(token.Status.Token)-2]
	forged, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	_, unauthorized := forged.CoreV1().ConfigMaps(namespace).List(e.ctx, metav1.ListOptions{})
	return all(
		want("who I am", review.Status.UserInfo.Username, user),
		want("what I may not", access.Status.Allowed, false),
		want("what it may", other.Status.Allowed, true),
		want("a good token", checked.Status.Authenticated, true),
		want("whose it is", checked.Status.User.Username, user),
		want("there are rules", len(rules.Status.ResourceRules) > 0, true),
		want("a forged token", apierrors.IsUnauthorized(unauthorized), true),
	)
}

// warnings collects what the server warns of.
type warnings struct {
	mu    sync.Mutex
	lines []string
}

func (w *warnings) HandleWarningHeader(code int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprint(code, " ", text))
}

// errorsAreTold looks at failures with the functions that programs tell them apart with.
func errorsAreTold(e *env) error {
	config := rest.CopyConfig(e.config)
	heard := &warnings{}
	config.WarningHandler = heard
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(e.ctx, configMap("one", nil), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, exists := maps.Create(e.ctx, configMap("one", nil), metav1.CreateOptions{})
	stale := made.DeepCopy()
	stale.ResourceVersion = "1"
	_, conflict := maps.Update(e.ctx, stale, metav1.UpdateOptions{})
	wrong := types.UID("00000000-0000-0000-0000-000000000000")
	precondition := maps.Delete(e.ctx, "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	_, notFound := maps.Get(e.ctx, "two", metav1.GetOptions{})
	_, invalid := maps.Create(e.ctx, configMap("Not A Name", nil), metav1.CreateOptions{})
	_, namespaceless := client.CoreV1().ConfigMaps("nowhere").Create(e.ctx, configMap("one", nil), metav1.CreateOptions{})
	_, media := maps.Patch(e.ctx, "one", types.PatchType("application/x-patch"), []byte("{}"), metav1.PatchOptions{})
	method := client.CoreV1().RESTClient().Put().Resource("configmaps").Namespace(namespace).Body([]byte("{}")).Do(e.ctx).Error()
	unacceptable := client.CoreV1().RESTClient().Get().Resource("configmaps").Namespace(namespace).SetHeader("Accept", "text/html").Do(e.ctx).Error()
	large := configMap("large", map[string]string{"k": strings.Repeat("x", 4<<20)})
	_, tooLarge := maps.Create(e.ctx, large, metav1.CreateOptions{})
	_, expired := maps.List(e.ctx, metav1.ListOptions{Continue: "bm9uc2Vuc2U", Limit: 1})
	_, badSelector := maps.List(e.ctx, metav1.ListOptions{LabelSelector: "a in"})
	_, badField := maps.List(e.ctx, metav1.ListOptions{FieldSelector: "data.k=1"})
	err = all(
		want("AlreadyExists", apierrors.IsAlreadyExists(exists), true),
		want("Conflict", apierrors.IsConflict(conflict), true),
		want("a precondition", apierrors.IsConflict(precondition), true),
		want("NotFound", apierrors.IsNotFound(notFound), true),
		want("Invalid", apierrors.IsInvalid(invalid), true),
		want("no such namespace", apierrors.IsNotFound(namespaceless), true),
		want("its words", fmt.Sprint(namespaceless), `namespaces "nowhere" not found`),
		want("UnsupportedMediaType", apierrors.IsUnsupportedMediaType(media), true),
		want("MethodNotSupported", apierrors.IsMethodNotSupported(method), true),
		want("NotAcceptable", apierrors.IsNotAcceptable(unacceptable), true),
		want("RequestEntityTooLarge", apierrors.IsRequestEntityTooLargeError(tooLarge), true),
		want("a bad token", apierrors.IsBadRequest(expired), true),
		want("a bad selector", apierrors.IsBadRequest(badSelector), true),
		want("a field that cannot be selected", apierrors.IsBadRequest(badField), true),
	)
	if err != nil {
		return err
	}
	cause, found := apierrors.StatusCause(invalid, metav1.CauseTypeFieldValueInvalid)
	if err := all(want("a cause", found, true), want("its field", cause.Field, "metadata.name")); err != nil {
		return err
	}
	_, err = client.CoreV1().RESTClient().Post().Resource("configmaps").Namespace(namespace).Param("fieldValidation", "Warn").
		Body([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"typo"},"dota":{},"data":{"a":"1","a":"2"}}`)).
		SetHeader("Content-Type", "application/json").Do(e.ctx).Raw()
	if err != nil {
		return err
	}
	heard.mu.Lock()
	defer heard.mu.Unlock()
	return want("warnings", fmt.Sprint(heard.lines), `[299 unknown field "dota" 299 duplicate field "data.a"]`)
}
